#include <algorithm>
#include <bit>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/contenders.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// What numbers [first, end) of row m can be at most, by value(e) and error(e), may reach least[m]: those that do go to
// `out`, in whole vectors of D as far as they go. Returns the first that is left; out moves on.
template <class D, class Value, class Error>
HWY_INLINE int64_t Scan(D d, const ContendersArgs& a, int64_t m, const Value& value, const Error& error, int64_t first,
                        int64_t end, int32_t*& out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto least = hn::Set(d, a.least[m]);
  for (; first + lanes <= end; first += lanes) {
    auto most = hn::Zero(d);
    for (const Estimate& e : a.sum) {
      most = hn::MulAdd(hn::Set(d, e.unit[m]), hn::LoadU(d, value(e) + first), most);
      most = hn::MulAdd(hn::Set(d, e.slack[m]), hn::LoadU(d, error(e) + first), most);
    }
    uint64_t may = 0;
    hn::StoreMaskBits(d, hn::Not(hn::Lt(most, least)), reinterpret_cast<uint8_t*>(&may));
    for (; may; may &= may - 1) *out++ = static_cast<int32_t>(first + std::countr_zero(may));
  }
  return first;
}

template <class Value, class Error>
HWY_INLINE void ScanAll(const ContendersArgs& a, int64_t m, const Value& value, const Error& error, int64_t first,
                        int64_t end, int32_t*& out) {
  first = Scan(hn::ScalableTag<float>(), a, m, value, error, first, end, out);
  Scan(hn::CappedTag<float, 1>(), a, m, value, error, first, end, out);
}

}  // namespace

// Appends the ids of blocks [begin, end).
void Contenders(const ContendersArgs& a, int64_t m, int64_t begin, int64_t end, std::vector<int32_t>& ids) {
  constexpr int64_t kChunk = 256;  // blocks that are looked at together
  const int64_t blocks = (a.valid + Estimate::kBlock - 1) / Estimate::kBlock;
  constexpr int64_t kAhead = 8;  // blocks that are brought into the cache early
  int32_t open[kChunk + kAhead], some[kChunk * Estimate::kBlock];
  const auto value_peaks = [=](const Estimate& e) { return e.value_peaks + m * blocks; };
  const auto value = [=](const Estimate& e) { return e.value.f32(m); };
  for (; begin < end; begin += kChunk) {
    int32_t* last = open;
    ScanAll(
        a, m, value_peaks, [](const Estimate& e) { return e.error_peaks; }, begin, std::min(end, begin + kChunk), last);
    std::fill_n(last, kAhead, static_cast<int32_t>(begin));
    int32_t* found = some;
    for (const int32_t* block = open; block < last; block++) {
      const int64_t first = *block * Estimate::kBlock, ahead = block[kAhead] * Estimate::kBlock;
      for (const Estimate& e : a.sum) hwy::Prefetch(e.value.f32(m, ahead)), hwy::Prefetch(e.error + ahead);
      ScanAll(
          a, m, value, [](const Estimate& e) { return e.error; }, first, std::min(a.valid, first + Estimate::kBlock),
          found);
    }
    ids.insert(ids.end(), some, found);
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(Contenders);

// Memory traffic: of each estimate the peaks, half a byte an id and row, and a cache line of values for each block with
// somebody who contends; errors come from cache for all rows but the first.
void contenders(const ContendersArgs& args, Stream& stream) {
  check(args);
  const int64_t M = args.sum[0].value.shape[0], blocks = (args.valid + Estimate::kBlock - 1) / Estimate::kBlock;
  constexpr int64_t kPart = 512;  // blocks of a task
  const int64_t parts = (blocks + kPart - 1) / kPart;
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(parts * M));
  pool_of(stream).parallel_for(parts, [&](int64_t i) {
    for (int64_t m = 0; m < M; m++) {
      HWY_DYNAMIC_DISPATCH(Contenders)
      (args, m, i * kPart, std::min(blocks, (i + 1) * kPart), found[static_cast<size_t>(m * parts + i)]);
    }
  });
  for (int64_t m = 0; m < M; m++) {
    args.ids[m].clear();
    for (int64_t i = 0; i < parts; i++) {
      const std::vector<int32_t>& some = found[static_cast<size_t>(m * parts + i)];
      args.ids[m].insert(args.ids[m].end(), some.begin(), some.end());
    }
  }
}

}  // namespace deltaring::cpu
#endif
