#include "model/interleaved_gdn.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace deltaring {

namespace {

// Rows [first, first + count) of each key head's group.
struct Part {
  int64_t first, count;
};

using Parts = std::initializer_list<Part>;

size_t bytes_of(const View<2>& rows) {
  return static_cast<size_t>(rows.shape[0] * rows.shape[1]) * size_of(rows.dtype);
}

// Part by part, and of each part the rows of all groups; first and count are in units of `unit` rows of the projection.
View<2> gather(const View<2>& from, int64_t groups, Parts parts, int64_t unit, Arena& arena) {
  const int64_t group = from.shape[0] / groups;
  int64_t rows = 0;
  for (const Part& part : parts) rows += groups * part.count / unit;
  View<2> to = dense<2>(nullptr, from.dtype, {rows, from.shape[1]});
  to.data = arena.take(bytes_of(to));
  int64_t row = 0;
  for (const Part& part : parts) {
    for (int64_t g = 0; g < groups; g++, row += part.count / unit) {
      const View<2> piece = from.rows(g * group + part.first / unit, part.count / unit);
      std::memcpy(to.address(to.offset(row)), piece.data, bytes_of(piece));
    }
  }
  return to;
}

WeightMatrix gather(const WeightMatrix& from, int64_t groups, Parts parts, Arena& arena) {
  const View<2> values = gather(from.values, groups, parts, 1, arena);
  if (!from.scales) return values;
  constexpr int64_t kBlock = WeightMatrix::kBlock;
  for (const Part& part : parts) {
    if (part.first % kBlock != 0 || part.count % kBlock != 0) {
      fail(ErrorKind::unsupported,
           "float8 in_proj_qkvz and in_proj_ba need {} key heads with multiples of {} rows, and have parts of {}; "
           "bfloat16 projections work",
           groups, kBlock, part.count);
    }
  }
  return {values, gather(from.scales, groups, parts, kBlock, arena)};
}

// Aligned, as an arena takes the pieces that a projection is cut into.
size_t arena_bytes(const WeightMatrix& w, size_t pieces) {
  return bytes_of(w.values) + (w.scales ? bytes_of(w.scales) : 0) + 2 * pieces * Arena::kAlignment;
}

}  // namespace

void deinterleave_gdn(Weights& weights) {
  const ModelConfig& c = weights.config;
  const int64_t Hk = c.linear_num_key_heads, r = c.linear_num_value_heads / Hk;
  const int64_t K = c.linear_key_head_dim, Z = r * c.linear_value_head_dim;  // rows of V, and of Z, of a key head
  size_t bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.kind == LayerKind::gdn) {
      bytes += arena_bytes(layer.gdn.in_proj_qkvz, 2) + arena_bytes(layer.gdn.in_proj_ba, 2);
    }
  }
  Arena arena(bytes, "rows of in_proj_qkvz and in_proj_ba in another order");
  for (LayerWeights& layer : weights.layers) {
    if (layer.kind != LayerKind::gdn) continue;
    GdnWeights& w = layer.gdn;
    w.in_proj_qkv = gather(w.in_proj_qkvz, Hk, {{0, K}, {K, K}, {2 * K, Z}}, arena);
    w.in_proj_z = gather(w.in_proj_qkvz, Hk, {{2 * K + Z, Z}}, arena);
    w.in_proj_b = gather(w.in_proj_ba, Hk, {{0, r}}, arena);
    w.in_proj_a = gather(w.in_proj_ba, Hk, {{r, r}}, arena);
  }
  weights.reordered = std::make_shared<const Arena>(std::move(arena));
}

}  // namespace deltaring
