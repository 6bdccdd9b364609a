// What a state makes of the prepared tokens. A warp takes M stripes of sixteen rows of V from its tile; nothing but
// barriers at the ends.
#pragma once
#include <cstddef>
#include <type_traits>

#include "backends/cuda/gdn/verify/fold.cuh"
#include "backends/cuda/gdn/verify/prepare.cuh"

namespace deltaring::cuda {

namespace consume {

// Columns 2t and 2t+1 of KT + QT tiles of 8 columns, keys then queries, for rows v (0, 1) and v+1 (2, 3) of M stripes.
template <int M, int KT, int QT>
using Columns = float[M][KT + QT][4];

// The window's v as records, from the warp's rows.
template <class Quad>
__device__ __forceinline__ void append_values(const VerifyParams& p, const Header& header, const Segment& s, int head,
                                              int V, uint32_t values, int lane) {
  using Rows = ValueRows<Quad>;
  const unsigned piece = lane % Rows::kPieces;
  uint16_t* const ring = header.values.ring + wide_product(head, p.v_at.head) + V + piece * 8;
#pragma unroll 1
  for (unsigned key = s.window + lane / Rows::kPieces; key < s.keys; key += 32 / Rows::kPieces) {
    uint16_t* to = ring + wide_product((s.slot + key) & (p.R - 1), p.v_at.row);
    *reinterpret_cast<uint4*>(to) = load_piece(values + Rows::at(key, piece));
  }
}

// S k_j and S q_c: f32 sums of exact products of k and q, bf16 as they came, with S in parts: exact of 16-bit states,
// of f32 ones but for their last bits.
template <class Quad, int M, int KT, int QT>
__device__ __forceinline__ void project(const Place& at, Columns<M, KT, QT>& d) {
  uint32_t columns[KT + QT];
#pragma unroll
  for (int b = 0; b < KT + QT; b++) {
    columns[b] = columns_place(b < KT ? at.keys.tile(b) : at.queries.tile(b - KT), at.lane);
  }
#pragma unroll
  for (int step = 0; step < kSteps; step += 2) {
    uint32_t x[KT + QT][4];
#pragma unroll
    for (int b = 0; b < KT + QT; b++) load_matrices(x[b], columns[b] + 32 * step);
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int m = 0; m < M; m++) {
        Quad quad;
        quad.load(at.state + 16 * m * kHead * Quad::kBytes, step + half);
        const typename Quad::Operand a(quad);
#pragma unroll
        for (int i = 0; i < Quad::Operand::kProducts; i++) {
#pragma unroll
          for (int b = 0; b < KT + QT; b++) a.multiply(i, d[m][b], x[b][2 * half], x[b][2 * half + 1]);
        }
      }
    }
  }
}

// S k_j becomes R_j = beta_j v_j - beta_j e^(G_j) r_j S k_j; zeros behind the last key.
template <class Quad, int M, int KT, int QT>
__device__ __forceinline__ void residuals(const Place& at, int keys, Columns<M, KT, QT>& d) {
#pragma unroll
  for (int b = 0; b < KT; b++) {
    const int j = 8 * b + 2 * at.t;
    const float2 key = at.pair(offsetof(Coefficients, key), b), beta = at.pair(offsetof(Coefficients, beta), b);
#pragma unroll
    for (int m = 0; m < M; m++) {
      float(&x)[4] = d[m][b];
      const uint32_t even = load_word(ValueRows<Quad>::stripe(at.values, m) + 8 * b * ValueRows<Quad>::kPitch),
                     odd = load_word(ValueRows<Quad>::stripe(at.values, m) + (8 * b + 1) * ValueRows<Quad>::kPitch);
      x[0] = j < keys ? fmaf(-key.x, x[0], beta.x * bf16_low(even)) : 0;
      x[1] = j + 1 < keys ? fmaf(-key.y, x[1], beta.y * bf16_low(odd)) : 0;
      x[2] = j < keys ? fmaf(-key.x, x[2], beta.x * bf16_high(even)) : 0;
      x[3] = j + 1 < keys ? fmaf(-key.y, x[3], beta.y * bf16_high(odd)) : 0;
    }
  }
}

template <int M, int KT, int QT>
__device__ __forceinline__ bool all_finite(const Columns<M, KT, QT>& d) {
  float sum[4] = {};  // of zeros, unless one is not finite
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int e = 0; e < 4 * KT; e++) sum[e % 4] = fmaf(d[m][e / 4][e % 4], 0.0f, sum[e % 4]);
  }
  return __all_sync(~0u, (sum[0] + sum[1]) + (sum[2] + sum[3]) == 0);
}

// A product of matrices cannot skip, so residuals that are not finite are taken out of it, and every result at or
// behind the first of them in its row becomes NaN. first[m][r]: that key for rows v and v+1 of a stripe, or more than
// any key.
template <int M, int KT, int QT>
__device__ __forceinline__ void contain(int t, Columns<M, KT, QT>& d, int (&first)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; m++) {
    first[m][0] = first[m][1] = 8 * kKeyTiles;
#pragma unroll
    for (int e = 0; e < 4 * KT; e++) {
      float& x = d[m][e / 4][e % 4];
      if ((__float_as_uint(x) & 0x7f800000u) != 0x7f800000u) continue;
      x = 0;
      first[m][e % 4 / 2] = min(first[m][e % 4 / 2], 8 * (e / 4) + 2 * t + e % 2);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      first[m][r] = min(first[m][r], __shfl_xor_sync(~0u, first[m][r], 1));
      first[m][r] = min(first[m][r], __shfl_xor_sync(~0u, first[m][r], 2));
    }
  }
}

// Of the segment's queries, to the unit's `out`.
template <DType type, int M, int KT, int QT>
__device__ __forceinline__ void store_outputs(const VerifyParams& p, const Segment& s, char* out, const Place& at,
                                              const Columns<M, KT, QT>& d) {
  using Pair = std::conditional_t<type == DType::f32, float2, uint32_t>;
  constexpr int64_t kSize = sizeof(Pair) / 2;
  out += (token_at(s.query + 2 * at.t, p.out_token, at.head, p.out_head) + at.V) * kSize;
#pragma unroll
  for (int u = 0; u < 2 * QT; u++) {
    if (8 * (u / 2) + 2 * at.t + u % 2 < s.queries) {
      Pair* const to = reinterpret_cast<Pair*>(out);
#pragma unroll
      for (int m = 0; m < M; m++) {
        const float low = d[m][KT + u / 2][u % 2], high = d[m][KT + u / 2][2 + u % 2];
        if constexpr (type == DType::f32) {
          to[8 * m] = {low, high};
        } else {
          to[8 * m] = pack_two<type>(low, high);
        }
      }
    }
    out += (u % 2 ? 7 : 1) * kSize * p.out_token;
  }
}

// Adds R of key tile b times N prepared tiles, tile u at block + tile(u), to columns `first` and on: all products above
// 2^-21 of the largest, small ones first, side by side so that they do not wait for each other.
template <int M, int N, int In, int Out, class Tile>
__device__ __forceinline__ void add_products(const Place& at, const float (&R)[M][In][4], int b, float (&to)[M][Out][4],
                                             int first, const Tile& tile) {
  Tf32Parts parts[M];
  Factor factors[N];
#pragma unroll
  for (int u = 0; u < N; u++) factors[u] = at.factor(tile(u));
#pragma unroll
  for (int m = 0; m < M; m++) parts[m] = Tf32Parts(R[m][b]);
#pragma unroll
  for (int i = 0; i < 3 * M * N; i++) {
    const int product = i / (M * N), m = i / N % M, u = i % N;
    const auto& x = product == 0 ? parts[m].low : parts[m].high;
    const auto& y = product == 1 ? factors[u].low : factors[u].high;
    mma_tf32(to[m][first + u], x, y[0], y[1]);
  }
}

// Outputs and corrections of residuals and S q. kContain: of residuals some of which are not finite; code of its own,
// for a jump over what is never done costs a fetch of instructions.
template <bool kContain, int M, int KT, int QT>
__device__ __forceinline__ void finish_segment(const VerifyParams& p, const Header& header, const Segment& s,
                                               const Place& at, Columns<M, KT, QT>& d,
                                               Corrections<M, KT>& corrections) {
  [[maybe_unused]] const float nan = __int_as_float(0x7fffffff);
  [[maybe_unused]] int bad[M][2];
  if constexpr (kContain) contain<M, KT, QT>(at.t, d, bad);
#pragma unroll
  for (int u = 0; u < QT; u++) {
    const float2 scale = at.pair(offsetof(Coefficients, query), u);
#pragma unroll
    for (int m = 0; m < M; m++) {
      float(&x)[4] = d[m][KT + u];
      // Adding zero makes -0 of an empty state what any other sum of zeros is.
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = fmaf(x[e], e % 2 ? scale.y : scale.x, 0.0f);
    }
  }
  if constexpr (QT > 0) {
#pragma unroll
    for (int b = 0; b < KT; b++)
      add_products<M, QT>(at, d, b, d, KT, [&](int u) { return Segment::outputs(b, u, QT); });
    if constexpr (kContain) {
#pragma unroll
      for (int e = 0; e < 4 * QT * M; e++) {
        const int m = e / (4 * QT), u = e / 4 % QT;
        if (s.window + 8 * u + 2 * at.t + e % 2 >= bad[m][e % 4 / 2]) d[m][KT + u][e % 4] = nan;
      }
    }
    if (p.out_dtype == DType::bf16) {
      store_outputs<DType::bf16, M, KT, QT>(p, s, header.out, at, d);
    } else if (p.out_dtype == DType::f16) {
      store_outputs<DType::f16, M, KT, QT>(p, s, header.out, at, d);
    } else {
      store_outputs<DType::f32, M, KT, QT>(p, s, header.out, at, d);
    }
  }
  if constexpr (KT <= 2 || QT == 0) {  // grains are of 8 or 16 keys, off the grid of up to 32
    if (!s.update) return;
#pragma unroll
    for (int b = 0; b < KT; b++)
      add_products<M, KT>(at, d, b, corrections, 0, [&](int u) { return Segment::corrections(b, u, KT, QT); });
    if constexpr (kContain) {
#pragma unroll
      for (int e = 0; e < 4 * KT * M; e++) {
        const int m = e / (4 * KT);
        if (bad[m][e % 4 / 2] < 8 * kKeyTiles) corrections[m][e / 4 % KT][e % 4] = nan;
      }
    }
  }
}

// A segment of KT key tiles and QT query tiles for M stripes, once their states and v are there. Every instance does
// the same to a column, whatever stands beside it. read() is called when v is not needed any more, nor the state but
// for a fold.
template <class Quad, int M, int KT, int QT, class Read>
__device__ __forceinline__ void consume_segment(const VerifyParams& p, const Header& header, int segment,
                                                const Place& at, Corrections<M, KT>& corrections, const Read& read) {
  Columns<M, KT, QT> d = {};
  project<Quad, M, KT, QT>(at, d);
  const Segment s = load_whole(header.segments[segment]);  // again: products need the registers
  residuals<Quad, M, KT, QT>(at, s.keys, d);
  read(s);
  if (all_finite<M, KT, QT>(d)) {
    finish_segment<false, M, KT, QT>(p, header, s, at, d, corrections);
  } else {
    finish_segment<true, M, KT, QT>(p, header, s, at, d, corrections);
  }
}

}  // namespace consume

// Rows V and on of the unit's value head `head`, whose state is in the warp's tile and v of the first segment in its
// rows, as far as each lane copied them. room holds what was prepared, `coefficients` that of the head. next() is
// called when tile and rows may be filled anew. kWide: as the plan has it.
template <class Quad, bool kWide, class Next>
__device__ __forceinline__ void consume_tile(const VerifyParams& p, const Header& header, int head, int V,
                                             uint32_t room, uint32_t coefficients, uint32_t tile, uint32_t values,
                                             int lane, const Next& next) {
  constexpr int M = kStripes<Quad>;
  consume::Place at{.lane = lane, .g = lane / 4, .t = lane % 4, .head = head};
  at.V = V + 2 * at.g, at.state = Quad::place(tile, lane), at.values = ValueRows<Quad>::place(values, lane);
#pragma unroll 1
  for (int i = 0;; i++) {
    const bool last = i + 1 == header.unit.segments;
    if (i > 0) copy_wait<0>();
    __syncwarp();  // state and v are there, or what a fold made of it
    int shape;
    {
      const Segment s = load_whole(header.segments[i]);
      at.keys = {room + s.keys_at, s.keys}, at.queries = {room + s.queries_at, s.queries};
      at.block = coefficients + s.block, shape = 4 * s.key_tiles() + s.query_tiles();
      if (p.append) consume::append_values<Quad>(p, header, s, head, V, values, lane);
    }
    const auto read = [&](const Segment& s) {
      if (last && !s.update) {
        next();
      } else if (!last) {
        __syncwarp();
        const Segment& following = header.segments[i + 1];
        fetch_values<Quad>(p, load_whole(header.values), head, following.first, following.keys, V, values, lane);
        copy_commit();
      }
    };
    consume::Corrections<M, 2> corrections = {};
    const auto go = [&](auto kt, auto qt) {
      if constexpr (kt <= 2) {
        consume::consume_segment<Quad, M, kt, qt>(p, header, i, at, corrections, read);
      } else {
        consume::Corrections<M, kt> none;
        consume::consume_segment<Quad, M, kt, qt>(p, header, i, at, none, read);
      }
    };
    // The stripes of long segments take turns: registers are few. Those without queries are folded, each stripe at
    // once.
    const auto go_long = [&](auto kt, auto qt) {
#pragma unroll 1
      for (int m = 0; m < M; m++) {
        consume::Place here = at;
        here.V += 16 * m, here.state += 16 * m * kHead * Quad::kBytes;
        here.values = ValueRows<Quad>::stripe(at.values, m);
        consume::Corrections<1, kt> own = {};
        consume::consume_segment<Quad, 1, kt, qt>(p, header, i, here, own, [&](const Segment& s) {
          if (m + 1 == M) read(s);
        });
        if constexpr (qt == 0) consume::fold<Quad, 1, kt>(own, here);
      }
    };
    using std::integral_constant;
    // The plan's `wide` says which of these there can be. No jump table: it waits for memory.
    if (shape == 5) {
      go(integral_constant<int, 1>(), integral_constant<int, 1>());
    } else if (shape == 9) {
      go(integral_constant<int, 2>(), integral_constant<int, 1>());
    } else if (shape == 4) {
      go(integral_constant<int, 1>(), integral_constant<int, 0>());
    } else if (shape == 8) {
      go(integral_constant<int, 2>(), integral_constant<int, 0>());
    } else if (shape == 13) {
      go(integral_constant<int, 3>(), integral_constant<int, 1>());
    } else if constexpr (kWide) {
      if (shape == 10) {
        go(integral_constant<int, 2>(), integral_constant<int, 2>());
      } else if (shape == 14) {
        go(integral_constant<int, 3>(), integral_constant<int, 2>());
      } else if (shape == 12) {
        go_long(integral_constant<int, 3>(), integral_constant<int, 0>());
      } else if (shape == 16) {
        go_long(integral_constant<int, 4>(), integral_constant<int, 0>());
      } else {
        go_long(integral_constant<int, 4>(), integral_constant<int, 2>());
      }
    }
    if (const Segment s = load_whole(header.segments[i]); s.update) {
      if (s.key_tiles() == 1) {
        consume::fold<Quad, M, 1>(corrections, at);
      } else if (!kWide || s.key_tiles() == 2) {
        consume::fold<Quad, M, 2>(corrections, at);
      }
      __syncwarp();
      if (s.store) {
        store_tile<Quad>(tile, header.state + (wide_product(head, p.state_at.head) + V * kHead) * Quad::kBytes, lane);
      }
      if (last) next();
    }
    if (last) break;
  }
}

}  // namespace deltaring::cuda
