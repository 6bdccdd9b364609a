#include "backends/cpu/gdn_head.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gdn_head.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// after highway.h
#include "backends/cpu/gdn-inl.h"
#include "backends/cpu/gdn_prepare-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {

void GdnPrepare(const GdnPlan& plan, GdnSegment& segment, float* temporary) { Prepare(plan, segment, temporary); }

void GdnExecute(const GdnRun& run) {
  if (run.count == 0) return;
  const int64_t V = run.from.shape[0];
  int64_t tiles = 0;
  for (int64_t i = 0; i < run.count; i++) tiles += Tiles(run.segments[i], run.stride);
  Ahead ahead(run.ahead, tiles * ((V + kRowBlock - 1) / kRowBlock));
  for (int64_t v0 = 0; v0 < V; v0 += kRowBlock)
    RunRows(run, v0, run.S + (run.keep || !run.fresh ? v0 * run.stride : 0), ahead);
}

void GdnStoreRounded(const float* x, DType t, int64_t count, void* to) { StoreRow(x, t, count, false, to); }

int64_t GdnLanes() { return LaneCount(); }

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {
HWY_EXPORT(GdnPrepare);
HWY_EXPORT(GdnExecute);
HWY_EXPORT(GdnStoreRounded);
HWY_EXPORT(GdnLanes);

void store_rounded(const float* x, const View<1>& to) {
  HWY_DYNAMIC_DISPATCH(GdnStoreRounded)(x, to.dtype, to.shape[0], to.data);
}

float* GdnScratch::need(int64_t floats) {
  if (floats > size_) {
    buffer_ = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
    size_ = buffer_ ? floats : 0;
    if (!buffer_) fail(ErrorKind::out_of_memory, "gdn: no {} bytes of scratch", floats * sizeof(float));
  }
  return buffer_.get();
}

GdnScratch& GdnScratch::of_this_thread() {
  static thread_local GdnScratch scratch;
  return scratch;
}

GdnHead::GdnHead(const View<2>& from, int64_t G, DType record, QkNorm norm, float scale, GdnScratch& scratch)
    : from_(from) {
  const auto [V, K] = from.shape;
  const int64_t lanes = HWY_DYNAMIC_DISPATCH(GdnLanes)(), stride = (K + lanes - 1) / lanes * lanes;
  plan_ = {.K = K,
           .V = V,
           .G = G,
           .stride = stride,
           .record = record,
           .norm = norm,
           .scale = scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(K))};
  const int64_t Vp = padded_rows(V), pairs = kTokens * kSegment, vectors = kTokens * stride;
  const int64_t rows = 2 * vectors + kMostTileRows * stride;  // a tile may look behind them
  float* next =
      scratch.need(Vp * stride + rows + 2 * vectors + 2 * pairs + 2 * kTokens + kTokens * Vp + kTemporary * stride);
  const auto take = [&next](int64_t floats) { return next += floats, next - floats; };
  S_ = take(Vp * stride), x_ = take(rows), w_ = take(vectors), e_ = take(vectors), v_ = take(kTokens * Vp);
  temporary_ = take(kTemporary * stride), A_ = take(pairs), P_ = take(pairs), to_ = take(kTokens), on_ = take(kTokens);
}

void GdnHead::open(int64_t count, int64_t records) {
  if (tokens_ + count > kTokens) run(true, {});
  const int64_t stride = plan_.stride, Vp = padded_rows(from_.shape[0]);
  segments_[segment_count_] = {.count = count,
                               .records = records,
                               .tokens = token_ + tokens_,
                               .x = x_ + 2 * tokens_ * stride,
                               .w = w_ + tokens_ * stride,
                               .e = e_ + segment_count_ * stride,
                               .to = to_ + tokens_,
                               .on = on_ + tokens_,
                               .A = A_ + tokens_ * kSegment,
                               .P = P_ + tokens_ * kSegment,
                               .v = v_ + tokens_ * Vp};
  tokens_ += count, segment_count_++, added_ = 0;
}

void GdnHead::leave(bool round, const View<2>& store) {
  GdnSegment& segment = segments_[segment_count_ - 1];
  segment.moves = true, segment.round = round, segment.store = store;
}

void GdnHead::run(bool keep, std::span<const GdnAhead> ahead) {
  for (int64_t i = 0; i < segment_count_; i++) HWY_DYNAMIC_DISPATCH(GdnPrepare)(plan_, segments_[i], temporary_);
  HWY_DYNAMIC_DISPATCH(GdnExecute)
  ({.segments = segments_,
    .count = segment_count_,
    .stride = plan_.stride,
    .from = from_,
    .fresh = fresh_,
    .keep = keep,
    .S = S_,
    .ahead = ahead});
  tokens_ = segment_count_ = 0, fresh_ = false;
}

}  // namespace deltaring::cpu
#endif
