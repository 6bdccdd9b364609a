#include <algorithm>
#include <limits>
#include <vector>

#include "backends/cpu/attention_tile.h"
#include "backends/cpu/for_rows.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"
#include "base/error.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "backends/cpu/attention-inl.h"
#include "backends/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaring::cpu::HWY_NAMESPACE {

// D rounded up to what AddValues takes in one step.
int64_t PaddedDim(int64_t D) { return (D + 2 * VectorLanes() - 1) / (2 * VectorLanes()) * (2 * VectorLanes()); }

// Positions [begin, begin + kBlock) before `end` of one kv head of a seat. A block may span pages.
template <class T>
BlockRows<T> FindBlock(const KvPages& kv, const int32_t* table, int64_t kv_head, int64_t begin, int64_t end) {
  BlockRows<T> block;
  const int64_t page_rows = kv.k.shape[2];
  for (int64_t p = begin; p < std::min(begin + kBlock, end); p++) {
    const int32_t page = table[p / page_rows];
    block.keys[block.count] = static_cast<const T*>(kv.k.data) + kv.k.offset(page, kv_head, p % page_rows);
    block.values[block.count++] = static_cast<const T*>(kv.v.data) + kv.v.offset(page, kv_head, p % page_rows);
  }
  return block;
}

template <class T>
void AttendSplitOf(const AttentionArgs& a, const QueryTile& tile, int64_t split, float* scratch, const Partial& part) {
  const int64_t D = a.q.shape[2], dim = PaddedDim(D), queries = tile.padded_queries();
  std::fill_n(part.max, queries, -std::numeric_limits<float>::infinity());
  std::fill_n(part.sum, queries, 0.0f);
  std::fill_n(part.out, queries * dim, 0.0f);

  float* q = scratch;
  std::fill_n(q, queries * dim, 0.0f);
  for (int64_t m = 0; m < tile.queries(); m++) {
    const float* from = a.q.f32(tile.first_token + m / tile.group, tile.kv_head * tile.group + m % tile.group);
    for (int64_t c = 0; c < D; c++) q[m * dim + c] = a.scale * from[c];
  }

  // Few queries read the pages as they are; many are worth a padded copy in float.
  const bool convert = D != dim || queries > 2 * kRegisterQueries;
  const int64_t stride = dim + kRowGap;
  float* converted = q + queries * dim;
  const int32_t* table = a.kv.table + a.rows.seat[tile.row] * a.kv.table_stride;
  const int64_t end = std::min(tile.end(), (split + 1) * kSplit);
  const int64_t first = std::max(tile.begin(), split * kSplit);
  BlockRows<T> block = FindBlock<T>(a.kv, table, tile.kv_head, first, end);
  for (int64_t begin = first; begin < end; begin += kBlock) {
    const BlockRows<T> next = FindBlock<T>(a.kv, table, tile.kv_head, begin + kBlock, end);
    const Ahead<T> values{block.values, block.count, D};
    const Ahead<T> next_keys{next.keys, next.count, D}, next_values{next.values, next.count, D};
    if (convert) {
      BlockRows<float> floats;
      floats.count = block.count;
      Convert(block.keys, block.count, D, dim, stride, converted, floats.keys);
      Convert(block.values, block.count, D, dim, stride, converted + kBlock * stride, floats.values);
      AttendBlock(tile, q, dim, begin, floats, next_keys, next_values, part);
    } else {
      AttendBlock(tile, q, dim, begin, block, values, next_keys, part);
    }
    block = next;
  }
}

// The tile over positions [split kSplit, (split + 1) kSplit).
void AttendSplit(const AttentionArgs& a, const QueryTile& tile, int64_t split, float* scratch, const Partial& part) {
  switch (a.kv.k.dtype) {
    case DType::f32:
      return AttendSplitOf<float>(a, tile, split, scratch, part);
    case DType::bf16:
      return AttendSplitOf<hwy::bfloat16_t>(a, tile, split, scratch, part);
    case DType::f16:
      return AttendSplitOf<hwy::float16_t>(a, tile, split, scratch, part);
    case DType::f8_e4m3:  // for weights alone: the check has refused it
      return;
  }
}

// total <- total and the result of `split`, for the queries that see any of it. The tile's first one starts the total.
void Merge(const QueryTile& tile, int64_t dim, int64_t split, const Partial& part, const Partial& total) {
  const Floats d;
  const bool starts = split == tile.first_split();
  for (int64_t m = 0; m < tile.queries(); m++) {
    if (tile.visible_end(m) <= split * kSplit) continue;
    const float old_max = starts ? -std::numeric_limits<float>::infinity() : total.max[m];
    const float new_max = std::max(old_max, part.max[m]);
    const float keep = ExpOrNaN(old_max - Base(new_max)), add = ExpOrNaN(part.max[m] - Base(new_max));
    total.max[m] = new_max;
    total.sum[m] = (starts ? 0.0f : total.sum[m] * keep) + part.sum[m] * add;
    for (int64_t c = m * dim; c < (m + 1) * dim; c += VectorLanes()) {
      const Vector old = starts ? hn::Zero(d) : hn::Mul(hn::Set(d, keep), hn::Load(d, total.out + c));
      hn::Store(hn::MulAdd(hn::Set(d, add), hn::Load(d, part.out + c), old), d, total.out + c);
    }
  }
}

// The sink's share of the softmax joins the sum; returns the factor that brings the output to the new maximum.
float AddSink(float sink, float& max, float& sum) {
  const float old_max = max;
  max = std::max(old_max, sink);
  const float factor = ExpOrNaN(old_max - Base(max));
  sum = sum * factor + ExpOrNaN(sink - Base(max));
  return factor;
}

// out = total / sum, gated. Uses total.out as scratch for the padded rows.
void Finish(const AttentionArgs& a, const QueryTile& tile, int64_t dim, const Partial& total) {
  const Floats d;
  const int64_t D = a.q.shape[2];
  std::vector<float> gate(dim);
  for (int64_t m = 0; m < tile.queries(); m++) {
    const int64_t token = tile.first_token + m / tile.group, head = tile.kv_head * tile.group + m % tile.group;
    float* row = total.out + m * dim;
    if (a.sinks) Scale1(AddSink(a.sinks[head], total.max[m], total.sum[m]), dim, row);
    if (a.gate) std::copy_n(a.gate.f32(token, head), D, gate.data());
    for (int64_t c = 0; c < dim; c += VectorLanes()) {
      Vector x = hn::Div(hn::Load(d, row + c), hn::Set(d, total.sum[m]));
      if (a.gate) {
        x = hn::Mul(x, Sigmoid(d, hn::LoadU(d, gate.data() + c)));
      }
      hn::Store(x, d, row + c);
    }
    std::copy_n(row, D, a.out.f32(token, head));
  }
}

}  // namespace deltaring::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaring::cpu {

HWY_EXPORT(PaddedDim);
HWY_EXPORT(AttendSplit);
HWY_EXPORT(Merge);
HWY_EXPORT(Finish);

namespace {

using Buffer = hwy::AlignedFreeUniquePtr<float[]>;

Buffer allocate(int64_t floats) {
  Buffer buffer = hwy::AllocateAligned<float>(static_cast<size_t>(floats));
  if (!buffer) fail(ErrorKind::out_of_memory, "attention: no {} bytes of scratch", floats * sizeof(float));
  return buffer;
}

// Every (row with a seat, kv head, tile of tokens).
std::vector<QueryTile> plan_tiles(const AttentionArgs& a) {
  std::vector<QueryTile> tiles;
  const int64_t Hkv = a.kv.k.shape[1], group = a.q.shape[1] / Hkv;
  const int64_t step = std::max<int64_t>(1, kTileQueries / group);
  for (int32_t b = 0; b < a.rows.count; b++) {
    if (a.rows.seat[b] < 0) continue;
    for (int64_t h = 0; h < Hkv; h++) {
      for (int64_t i = 0; i < a.rows.length(b); i += step) {
        tiles.push_back({.row = b,
                         .kv_head = h,
                         .group = group,
                         .first_token = a.rows.start[b] + i,
                         .tokens = std::min(step, a.rows.length(b) - i),
                         .first_position = a.rows.first[b] + i,
                         .window = a.window,
                         .row_end = a.whole_row ? a.rows.first[b] + a.rows.length(b) : 0});
      }
    }
  }
  return tiles;
}

// A task takes a tile through all its splits.
void run_tiles(const AttentionArgs& a, const std::vector<QueryTile>& tiles, int64_t dim, ThreadPool& pool) {
  pool.parallel_for(static_cast<int64_t>(tiles.size()), [&](int64_t i) {
    const QueryTile& tile = tiles[i];
    const int64_t queries = tile.padded_queries(), size = Partial::size(queries, dim);
    const Buffer buffer = allocate(2 * size + tile.scratch_size(dim));
    const Partial part(buffer.get(), queries, dim), total(buffer.get() + size, queries, dim);
    for (int64_t s = tile.first_split(); s < tile.last_split(); s++) {
      HWY_DYNAMIC_DISPATCH(AttendSplit)(a, tile, s, buffer.get() + 2 * size, part);
      HWY_DYNAMIC_DISPATCH(Merge)(tile, dim, s, part, total);
    }
    HWY_DYNAMIC_DISPATCH(Finish)(a, tile, dim, total);
  });
}

// A task takes a tile through one split; then a task a tile merges them. Same bits.
void run_splits(const AttentionArgs& a, const std::vector<QueryTile>& tiles, int64_t dim, ThreadPool& pool) {
  struct Task {
    const QueryTile* tile;
    int64_t split;
    int64_t partial;  // offset of its result
  };
  std::vector<Task> tasks;
  std::vector<int64_t> first_task;
  int64_t floats = 0;
  for (const QueryTile& tile : tiles) {
    first_task.push_back(static_cast<int64_t>(tasks.size()));
    for (int64_t s = tile.first_split(); s < tile.last_split(); s++) {
      tasks.push_back({&tile, s, floats});
      floats += Partial::size(tile.padded_queries(), dim);
    }
  }
  const Buffer partials = allocate(floats);
  const auto partial_of = [&](const Task& task) {
    return Partial(partials.get() + task.partial, task.tile->padded_queries(), dim);
  };
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const Buffer scratch = allocate(tasks[i].tile->scratch_size(dim));
    HWY_DYNAMIC_DISPATCH(AttendSplit)(a, *tasks[i].tile, tasks[i].split, scratch.get(), partial_of(tasks[i]));
  });
  pool.parallel_for(static_cast<int64_t>(tiles.size()), [&](int64_t i) {
    const QueryTile& tile = tiles[i];
    const Buffer buffer = allocate(Partial::size(tile.padded_queries(), dim));
    const Partial total(buffer.get(), tile.padded_queries(), dim);
    for (int64_t s = tile.first_split(); s < tile.last_split(); s++) {
      HWY_DYNAMIC_DISPATCH(Merge)(tile, dim, s, partial_of(tasks[first_task[i] + s - tile.first_split()]), total);
    }
    HWY_DYNAMIC_DISPATCH(Finish)(a, tile, dim, total);
  });
}

}  // namespace

// Memory traffic a token: k and v, 2 Hkv D elements, in as f32 and out as the dtype of the pages.
void kv_append(const KvAppendArgs& args, Stream& stream) {
  check(args);
  const Rows& rows = args.rows;
  const KvPages& kv = args.kv;
  const int64_t Hkv = args.k.shape[1], D = args.k.shape[2], page_rows = kv.k.shape[2];
  for_rows(stream, rows.tokens(), 2 * Hkv * D, [&](int64_t token) {
    const int64_t b = std::upper_bound(rows.start, rows.start + rows.count + 1, token) - rows.start - 1;
    if (rows.seat[b] < 0) return;
    const int64_t p = rows.first[b] + token - rows.start[b];
    const int32_t page = kv.table[rows.seat[b] * kv.table_stride + p / page_rows];
    for (int64_t h = 0; h < Hkv; h++) {
      store_floats(kv.k.data, kv.k.dtype, kv.k.offset(page, h, p % page_rows), D, args.k.f32(token, h));
      store_floats(kv.v.data, kv.v.dtype, kv.v.offset(page, h, p % page_rows), D, args.v.f32(token, h));
    }
  });
}

// Memory traffic of a row: the keys and values it sees, 2 Hkv D elements a position, once for every kTileQueries
// queries that share a kv head; q, gate and out once.
void attention(const AttentionArgs& args, Stream& stream) {
  check(args);
  for (int32_t b = 0; b < args.rows.count; b++) {
    for (int32_t t = args.rows.start[b]; t < args.rows.start[b + 1] && args.rows.seat[b] < 0; t++) {
      for (int64_t h = 0; h < args.out.shape[1]; h++) std::fill_n(args.out.f32(t, h), args.out.shape[2], 0.0f);
    }
  }
  ThreadPool& pool = pool_of(stream);
  const std::vector<QueryTile> tiles = plan_tiles(args);
  if (tiles.empty()) return;
  const int64_t dim = HWY_DYNAMIC_DISPATCH(PaddedDim)(args.q.shape[2]);
  const bool enough = static_cast<int64_t>(tiles.size()) >= 2 * pool.size();
  (enough ? run_tiles : run_splits)(args, tiles, dim, pool);
}

}  // namespace deltaring::cpu
#endif
