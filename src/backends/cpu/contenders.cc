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

// Who contends, and what all estimates but the first make of each at most.
struct Found {
  int32_t* id;
  float* rest;
};

// What numbers [first, end) of row m can be at most, by value(e) and error(e), may reach least[m]: those that do go to
// `out`, in whole vectors of D as far as they go. Returns the first that is left; out moves on.
template <class D, class Value, class Error>
HWY_INLINE int64_t Scan(D d, const ContendersArgs& a, int64_t m, const Value& value, const Error& error, int64_t first,
                        int64_t end, Found& out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto least = hn::Set(d, a.least[m]);
  const auto add = [&](const Estimate& e, hn::Vec<D> to) HWY_ATTR {
    to = hn::MulAdd(hn::Set(d, e.unit[m]), hn::LoadU(d, value(e) + first), to);
    return hn::MulAdd(hn::Set(d, e.slack[m]), hn::LoadU(d, error(e) + first), to);
  };
  for (; first + lanes <= end; first += lanes) {
    auto rest = hn::Zero(d);
    for (const Estimate& e : a.sum.subspan(1)) rest = add(e, rest);
    uint64_t may = 0;
    hn::StoreMaskBits(d, hn::Not(hn::Lt(add(a.sum[0], rest), least)), reinterpret_cast<uint8_t*>(&may));
    if (!may) continue;
    float rests[hn::MaxLanes(d)];
    hn::StoreU(rest, d, rests);
    for (; may; may &= may - 1) {
      const int lane = std::countr_zero(may);
      *out.id++ = static_cast<int32_t>(first + lane), *out.rest++ = rests[lane];
    }
  }
  return first;
}

template <class Value, class Error>
HWY_INLINE void ScanAll(const ContendersArgs& a, int64_t m, const Value& value, const Error& error, int64_t first,
                        int64_t end, Found& out) {
  first = Scan(hn::ScalableTag<float>(), a, m, value, error, first, end, out);
  Scan(hn::CappedTag<float, 1>(), a, m, value, error, first, end, out);
}

}  // namespace

// Appends the ids of blocks [begin, end).
void Contenders(const ContendersArgs& a, int64_t m, int64_t begin, int64_t end, std::vector<int32_t>& ids,
                std::vector<float>& rest) {
  constexpr int64_t kChunk = 256;  // blocks that are looked at together
  const int64_t blocks = (a.valid + Estimate::kBlock - 1) / Estimate::kBlock;
  constexpr int64_t kAhead = 8;  // blocks that are brought into the cache early
  int32_t open[kChunk + kAhead], some[kChunk * Estimate::kBlock];
  float open_rest[kChunk], some_rest[kChunk * Estimate::kBlock];
  const auto value_peaks = [=](const Estimate& e) { return e.value_peaks + m * blocks; };
  const auto value = [=](const Estimate& e) { return e.value.f32(m); };
  for (; begin < end; begin += kChunk) {
    Found last{open, open_rest}, found{some, some_rest};
    ScanAll(
        a, m, value_peaks, [](const Estimate& e) { return e.error_peaks; }, begin, std::min(end, begin + kChunk), last);
    std::fill_n(last.id, kAhead, static_cast<int32_t>(begin));
    for (const int32_t* block = open; block < last.id; block++) {
      const int64_t first = *block * Estimate::kBlock, ahead = block[kAhead] * Estimate::kBlock;
      for (const Estimate& e : a.sum) hwy::Prefetch(e.value.f32(m, ahead)), hwy::Prefetch(e.error + ahead);
      ScanAll(
          a, m, value, [](const Estimate& e) { return e.error; }, first, std::min(a.valid, first + Estimate::kBlock),
          found);
    }
    ids.insert(ids.end(), some, found.id);
    rest.insert(rest.end(), some_rest, found.rest);
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
  struct Part {
    std::vector<int32_t> ids;
    std::vector<float> rest;
  };
  std::vector<Part> found(static_cast<size_t>(parts * M));
  pool_of(stream).parallel_for(parts, [&](int64_t i) {
    for (int64_t m = 0; m < M; m++) {
      auto& [ids, rest] = found[static_cast<size_t>(m * parts + i)];
      HWY_DYNAMIC_DISPATCH(Contenders)(args, m, i * kPart, std::min(blocks, (i + 1) * kPart), ids, rest);
    }
  });
  for (int64_t m = 0; m < M; m++) {
    args.ids[m].clear();
    if (args.rest) args.rest[m].clear();
    for (int64_t i = 0; i < parts; i++) {
      const auto& [ids, rest] = found[static_cast<size_t>(m * parts + i)];
      args.ids[m].insert(args.ids[m].end(), ids.begin(), ids.end());
      if (args.rest) args.rest[m].insert(args.rest[m].end(), rest.begin(), rest.end());
    }
  }
}

}  // namespace deltaring::cpu
#endif
