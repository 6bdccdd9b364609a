// What this machine can do at best: the denominators of the other benches.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/threads.h"

#ifdef DELTARING_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace deltaring::bench {

struct Roofline {
  double read = 0;       // bytes/s, all threads summing a buffer far larger than the caches
  double sgemm = 0;      // flop/s of oneDNN in f32; 0 without oneDNN
  double bf16_gemm = 0;  // flop/s of oneDNN in bf16; 0 where it has no kernel for this CPU but a reference loop

  double gemm() const { return std::max(sgemm, bf16_gemm); }
};

// Seconds that `body` takes.
template <class Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

template <class Body>
double median_seconds(int repetitions, const Body& body) {
  body();
  std::vector<double> samples;
  for (int i = 0; i < repetitions; i++) samples.push_back(seconds(body));
  return median(samples);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DELTARING_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DELTARING_WIDEST
#endif

// The sum of the words of a piece, with the widest loads of this machine.
DELTARING_WIDEST inline uint64_t sum_words(const std::byte* data, int64_t bytes) {
  constexpr int64_t kLanes = 32;
  uint64_t lanes[kLanes] = {};
  for (int64_t i = 0; i < bytes; i += sizeof(lanes)) {
    uint64_t words[kLanes];
    std::memcpy(words, data + i, sizeof(words));
    for (int64_t l = 0; l < kLanes; l++) lanes[l] += words[l];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

// Reads bytes [0, size) once with all threads of the pool; size is a multiple of 64 KiB. The sum keeps the loads alive.
inline uint64_t read_all(ThreadPool& pool, const std::byte* data, int64_t size) {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<uint64_t> sums(size / kPiece);
  pool.parallel_for(size / kPiece, [&](int64_t piece) { sums[piece] = sum_words(data + piece * kPiece, kPiece); });
  uint64_t sum = 0;
  for (uint64_t piece : sums) sum += piece;
  return sum;
}

#ifdef DELTARING_ONEDNN
// out [M, N] = x [M, K] w [N, K]^T
inline void onednn_sgemm(int64_t M, int64_t N, int64_t K, const float* x, const float* w, float* out) {
  dnnl_sgemm('N', 'T', M, N, K, 1.0f, x, K, w, K, 0.0f, out, N);
}

inline double onednn_sgemm_rate(int64_t M, int64_t N, int64_t K) {
  std::vector<float> x(M * K, 1.0f), w(N * K, 1.0f), out(M * N);
  const double time = median_seconds(9, [&] { onednn_sgemm(M, N, K, x.data(), w.data(), out.data()); });
  return 2.0 * static_cast<double>(M * N * K) / time;
}

inline double onednn_bf16_rate(int64_t M, int64_t N, int64_t K) {
  using dnnl::memory;
  const auto bf16 = memory::data_type::bf16;
  const memory::desc x({M, K}, bf16, memory::format_tag::ab), w({K, N}, bf16, memory::format_tag::ba);
  const memory::desc out({M, N}, memory::data_type::f32, memory::format_tag::ab);
  try {
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
#if DNNL_VERSION_MAJOR < 3
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x, w, out), engine);
#else
    const dnnl::matmul::primitive_desc plan(engine, x, w, out);
#endif
    if (std::strstr(plan.impl_info_str(), "ref")) return 0;
    memory x_memory(x, engine), w_memory(w, engine), out_memory(out, engine);
    for (memory* m : {&x_memory, &w_memory}) std::memset(m->get_data_handle(), 0, m->get_desc().get_size());
    const dnnl::matmul matmul(plan);
    const double time = median_seconds(9, [&] {
      matmul.execute(stream, {{DNNL_ARG_SRC, x_memory}, {DNNL_ARG_WEIGHTS, w_memory}, {DNNL_ARG_DST, out_memory}});
      stream.wait();
    });
    return 2.0 * static_cast<double>(M * N * K) / time;
  } catch (const dnnl::error&) {
    return 0;  // bf16 is not implemented for this CPU
  }
}
#endif

// `memory` is what the bandwidth is measured on: 512 MB or more, touched before.
inline Roofline measure_roofline(ThreadPool& pool, const std::vector<std::byte>& memory) {
  Roofline best;
  volatile uint64_t sink = 0;
  const auto size = static_cast<int64_t>(memory.size());
  best.read = static_cast<double>(size) / median_seconds(5, [&] { sink = read_all(pool, memory.data(), size); });
#ifdef DELTARING_ONEDNN
  for (int64_t M : {256, 512}) {
    best.sgemm = std::max(best.sgemm, onednn_sgemm_rate(M, 1024, 3584));
    best.bf16_gemm = std::max(best.bf16_gemm, onednn_bf16_rate(M, 1024, 3584));
  }
#endif
  return best;
}

}  // namespace deltaring::bench
