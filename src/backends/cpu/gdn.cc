#include <algorithm>
#include <cmath>
#include <cstddef>

#include "backends/cpu/gdn_run.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "base/error.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gdn.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// after highway.h
#include "backends/cpu/gdn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {

void GdnHead(const GdnRun& run, float* S) {
  constexpr int kRows = 4;  // 8 dot-product chains, all vectors of an iteration in registers
  const int64_t V = run.checkpoint.shape[0];
  for (int64_t v = 0; v < V;) {
    const int64_t rows = v + kRows <= V ? kRows : 1;
    float* row = S + v * run.stride;
    if (run.fresh) Depart(run, row, rows, v);
    rows == kRows ? RunRows<kRows>(run, row, v) : RunRows<1>(run, row, v);
    v += rows;
  }
}

void GdnNormalise(const float* x, int64_t count, int64_t stride, float scale, float* out) {
  Normalise(x, count, stride, scale, out);
}

int64_t GdnLanes() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {
HWY_EXPORT(GdnHead);
HWY_EXPORT(GdnNormalise);
HWY_EXPORT(GdnLanes);

void Depart(const GdnRun& run, float* S, int64_t rows, int64_t v0) {
  const View<2>& from = run.checkpoint;
  const int64_t K = from.shape[1];
  for (int64_t r = 0; r < rows; r++) {
    load_floats(from.data, from.dtype, from.offset(v0 + r, 0), K, S + r * run.stride);
    std::fill(S + r * run.stride + K, S + (r + 1) * run.stride, 0.0f);
  }
}

void Arrive(const GdnRun& run, bool round, bool store, float* S, int64_t rows, int64_t v0) {
  constexpr int64_t kPiece = 64;
  const View<2>& to = run.checkpoint;
  const int64_t K = to.shape[1];
  for (int64_t r = 0; r < rows; r++) {
    float* row = S + r * run.stride;
    for (int64_t k = 0; k < K && round && to.dtype != DType::f32; k += kPiece) {
      uint16_t piece[kPiece];
      store_floats(piece, to.dtype, 0, std::min(kPiece, K - k), row + k);
      load_floats(piece, to.dtype, 0, std::min(kPiece, K - k), row + k);
    }
    if (store) store_floats(to.data, to.dtype, to.offset(v0 + r, 0), K, row);
  }
}

namespace {

constexpr int64_t kTokens = 32;  // tokens prepared at a time: with S they fit the second-level cache

// Scratch of one thread: S [V, stride], then k^, q^ [kTokens, stride] and v [kTokens, V].
class Scratch {
 public:
  float* need(int64_t floats) {
    if (floats > size_) {
      buffer_ = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
      size_ = buffer_ ? floats : 0;
      if (!buffer_) fail(ErrorKind::out_of_memory, "gdn: no {} bytes of scratch", floats * sizeof(float));
    }
    return buffer_.get();
  }

 private:
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  int64_t size_ = 0;
};

// One value head of one row: from the checkpoint through records and window.
class Head {
 public:
  Head(const GdnState& state, const Rows& rows, int64_t grain, int32_t b, int64_t head, Scratch& scratch)
      : state_(state),
        seat_(rows.seat[b]),
        head_(head),
        folded_(rows.folded[b]),
        first_(rows.first[b]),
        fold_to_(rows.fold_to[b]),
        grain_(grain),
        V_(state.checkpoint.shape[2]),
        K_(state.checkpoint.shape[3]),
        R_(state.record_k.shape[2]),
        key_head_(head / (state.checkpoint.shape[1] / state.record_k.shape[1])) {
    const int64_t lanes = HWY_DYNAMIC_DISPATCH(GdnLanes)();
    stride_ = (K_ + lanes - 1) / lanes * lanes;
    S_ = scratch.need(stride_ * (V_ + 2 * kTokens) + V_ * kTokens);
    k_ = S_ + V_ * stride_, q_ = k_ + kTokens * stride_, v_ = q_ + kTokens * stride_;
  }

  void record(int64_t p) {
    const int64_t slot = p % R_;
    const View<1> k = state_.record_k[seat_][key_head_][slot], v = state_.record_v[seat_][head_][slot];
    add(p, k, v, nullptr, *state_.record_g.f32(seat_, head_, slot), *state_.record_beta.f32(seat_, head_, slot),
        nullptr);
  }

  void window(const GdnVerifyArgs& a, int64_t p, int64_t token) {
    add(p, a.k[token][key_head_], a.v[token][head_], a.q.f32(token, key_head_), *a.g.f32(token, head_),
        *a.beta.f32(token, head_), a.out.f32(token, head_));
  }

  // The state stands at `end`.
  void finish(int64_t end) {
    flush();
    if (end == fold_to_ && end != folded_) Arrive(run(), true, true, S_, V_, 0);
  }

 private:
  void add(int64_t p, const View<1>& k, const View<1>& v, const float* q, float g, float beta, float* out) {
    if (count_ == kTokens) flush();
    const DType record = state_.record_k.dtype;
    float* kp = k_ + count_ * stride_;
    float* qp = q_ + count_ * stride_;
    float* vp = v_ + count_ * V_;
    round_into(qp, k, record);
    const auto normalise = HWY_DYNAMIC_DISPATCH(GdnNormalise);
    normalise(qp, K_, stride_, 1.0f, kp);
    if (q) normalise(q, K_, stride_, 1.0f / std::sqrt(static_cast<float>(K_)), qp);
    round_into(vp, v, record);
    steps_[count_++] = {.k = kp,
                        .q = qp,
                        .v = vp,
                        .decay = std::exp(g),
                        .beta = beta,
                        .out = out,
                        .round = p != folded_ && (p == fold_to_ || (grain_ != 0 && p % grain_ == 0)),
                        .store = p != folded_ && p == fold_to_};
  }

  // A vector as it reads back from a record.
  static void round_into(float* out, const View<1>& x, DType record) {
    load_floats(x.data, x.dtype, 0, x.shape[0], out);
    if (record == DType::f32 || x.dtype != DType::f32) return;
    for (int64_t i = 0; i < x.shape[0]; i++) out[i] = round_to(record, out[i]);
  }

  GdnRun run() const { return {steps_, count_, stride_, fresh_, state_.checkpoint[seat_][head_]}; }

  void flush() {
    if (count_ == 0) return;
    HWY_DYNAMIC_DISPATCH(GdnHead)(run(), S_);
    count_ = 0, fresh_ = false;
  }

  const GdnState& state_;
  const int32_t seat_;
  const int64_t head_, folded_, first_, fold_to_, grain_, V_, K_, R_, key_head_;
  int64_t stride_, count_ = 0;
  bool fresh_ = true;
  float *S_, *k_, *q_, *v_;
  GdnStep steps_[kTokens];
};

Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

void append_records(const GdnVerifyArgs& a, int32_t b) {
  const GdnState& s = a.state;
  const auto [seats, Hk, R, K] = s.record_k.shape;
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  const int32_t seat = a.rows.seat[b];
  const auto store = [](const View<4>& ring, int32_t at, int64_t h, int64_t slot, const float* x, int64_t count) {
    const View<1> row = ring[at][h][slot];
    store_floats(row.data, row.dtype, 0, count, x);
  };
  for (int32_t i = 0; i < a.rows.length(b); i++) {
    const int64_t p = a.rows.first[b] + i, token = a.rows.start[b] + i, slot = p % R;
    if (p < a.rows.fold_to[b]) continue;
    for (int64_t h = 0; h < Hk; h++) store(s.record_k, seat, h, slot, a.k.f32(token, h), K);
    for (int64_t h = 0; h < Hv; h++) {
      store(s.record_v, seat, h, slot, a.v.f32(token, h), V);
      *s.record_g.f32(seat, h, slot) = *a.g.f32(token, h);
      *s.record_beta.f32(seat, h, slot) = *a.beta.f32(token, h);
    }
  }
}

void advance(const GdnVerifyArgs& a, Stream& stream) {
  const int64_t Hv = a.v.shape[1], V = a.v.shape[2];
  ThreadPool& pool = pool_of(stream);
  pool.parallel_for(a.rows.count * Hv, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task / Hv);
    const int64_t h = task % Hv, begin = a.rows.start[b], length = a.rows.length(b);
    if (a.rows.seat[b] < 0) {
      for (int64_t i = 0; i < length; i++) std::fill_n(a.out.f32(begin + i, h), V, 0.0f);
      return;
    }
    const int64_t first = a.rows.first[b];
    if (length == 0 && a.rows.fold_to[b] == a.rows.folded[b]) return;
    Head head(a.state, a.rows, a.grain, b, h, thread_scratch());
    for (int64_t p = a.rows.folded[b]; p < first; p++) head.record(p);
    for (int64_t i = 0; i < length; i++) head.window(a, first + i, begin + i);
    head.finish(first + length);
  });
  // Sibling value heads share a key ring, so records are written once every head has read the old ones.
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] >= 0) append_records(a, b);
  }
}

}  // namespace

// Memory traffic: a, b, g and beta once, 16 Hv bytes a token.
void gdn_gates(const GdnGatesArgs& args, Stream&) {
  check(args);
  for (int64_t t = 0; t < args.a.shape[0]; t++) {
    for (int64_t h = 0; h < args.a.shape[1]; h++) {
      const float x = *args.a.f32(t, h) + args.dt_bias[h];
      const float softplus = x > 20 ? x : std::log1p(std::exp(x));
      *args.g.f32(t, h) = -std::exp(args.A_log[h]) * softplus;
      *args.beta.f32(t, h) = 1 / (1 + std::exp(-*args.b.f32(t, h)));
    }
  }
}

// Memory traffic of a row: its checkpoint once (written too where a fold is due), n records of Hk K + Hv V elements and
// 8 Hv bytes in and T out, the window q, k, v, g, beta and out once.
void gdn_verify(const GdnVerifyArgs& args, Stream& stream) { check_verify(args), advance(args, stream); }

// Memory traffic of a row: as gdn_verify, but of its tokens only those from fold_to on are written as records.
void gdn_prefill(const GdnVerifyArgs& args, Stream& stream) { check_prefill(args), advance(args, stream); }

// Memory traffic of a row with a fold: its checkpoint in and out, the records [folded, fold_to) once.
void gdn_fold(const GdnFoldArgs& args, Stream& stream) {
  check(args);
  const int64_t Hv = args.state.checkpoint.shape[1];
  pool_of(stream).parallel_for(args.rows.count * Hv, [&](int64_t task) {
    const int32_t b = static_cast<int32_t>(task / Hv);
    if (args.rows.seat[b] < 0 || args.rows.fold_to[b] == args.rows.folded[b]) return;
    Head head(args.state, args.rows, args.grain, b, task % Hv, thread_scratch());
    for (int64_t p = args.rows.folded[b]; p < args.rows.fold_to[b]; p++) head.record(p);
    head.finish(args.rows.fold_to[b]);
  });
}

}  // namespace deltaring::cpu
#endif
