// One layer of conv, gates, delta rule and KV rows over the seats of a StatePool, through the ops of a backend. Its
// requests are stories: inputs that are known in advance and have been decoded plainly, one token a step. Whatever else
// is done with a seat, each accepted token must come out with the same bits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/tables.h"
#include "base/rng.h"
#include "state/materialise.h"

namespace deltaring::test {

struct TinyOptions {
  DType checkpoint = DType::f32, record = DType::f32;
  bool kda = false;  // a gate per key channel
  int64_t F = 8;
  FoldPolicy policy = FoldPolicy::grid;
  StateRollback rollback = StateRollback::replay;
};

// What one seat does in a step: a window of `length` tokens of which `keep` are its story's and stay. The others hold
// what no accepted token may notice.
enum class Noise : uint8_t { other, nan, infinite, huge };
struct Turn {
  int32_t seat = -1;
  int story = 0;
  int32_t length = 1, keep = 1;
  Noise noise = Noise::other;
};

class TinyLayer {
 public:
  static constexpr int64_t Hk = 1, Hv = 2, K = 4, V = 2, kTaps = 4, D = 2, C = 2 * Hk * K + Hv * V;
  static constexpr int64_t kTokens = 48, kStories = 32, kMostTokens = 128;

  explicit TinyLayer(const TinyOptions& options)
      : options_(options), G_(options.kda ? K : 1), width_(C + Hv * G_ + Hv + 2 * D) {
    for (int64_t i = 0; i < C * kTaps; i++) weight_.push_back(number(1, i) * 0.8f);
    for (int64_t i = 0; i < Hv; i++) A_log_.push_back(number(2, i) - 1);
    for (int64_t i = 0; i < Hv * G_; i++) dt_bias_.push_back(number(3, i));
    for (Buffer* b : {&in_, &conv_, &g_, &beta_, &out_}) b->resize(static_cast<size_t>(kMostTokens * width_));
    for (int story = 0; story < kStories; story++) tell(story);
    for (int story = 0; story < kStories; story++) decode_plainly(story);
    plain_ = true;
  }

  StateShape shape() const {
    return {.gdn_layers = 1,
            .Hk = Hk,
            .Hv = Hv,
            .K = K,
            .V = V,
            .G = G_,
            .conv_channels = C,
            .taps = kTaps,
            .kv_layers = 1,
            .Hkv = 1,
            .D = D};
  }
  // R 0: the default.
  StateOptions pool_options(int64_t seats, int64_t T, int64_t page_rows = 8, int64_t R = 0) const {
    return {.seats = seats,
            .kv_tokens = seats * kTokens,
            .page_rows = page_rows,
            .ring = {.T = T,
                     .F = options_.F,
                     .R = R ? R : default_ring_rows(T, options_.F, options_.policy),
                     .policy = options_.policy},
            .rollback = options_.rollback,
            .checkpoint = options_.checkpoint,
            .record = options_.record};
  }

  // Stories a and b have the same tokens before this position.
  static int64_t agreement(int a, int b) {
    for (int part = 0; part < kParts; part++)
      if ((a ^ b) >> part & 1) return kForks[part];
    return kTokens;
  }

  // One verify of all turns and the commits behind it. Room must have been reserved. Returns "" or what differs.
  std::string step(StatePool& pool, const std::vector<Turn>& turns) { return run(pool, turns, false); }
  std::string prefill(StatePool& pool, int32_t seat, int story, int32_t length) {
    return run(pool, {{.seat = seat, .story = story, .length = length, .keep = length}}, true);
  }

  // What the seat stores is what the story says: KV rows and, where plain decoding had one, the checkpoint.
  std::string check(const StatePool& pool, int32_t seat, int story) const {
    const Cursor c = pool.cursor(seat);
    const KvPages kv = pool.kv(0);
    for (int64_t p = 0; p < c.pos; p++) {
      const int32_t page = kv.table[seat * kv.table_stride + p / pool.options().page_rows];
      const int64_t row = p % pool.options().page_rows;
      const float* want = input(story, p) + width_ - 2 * D;
      if (std::memcmp(kv.k.f32(page, 0, row), want, D * sizeof(float)) != 0 ||
          std::memcmp(kv.v.f32(page, 0, row), want + D, D * sizeof(float)) != 0)
        return "KV of position " + std::to_string(p) + " of seat " + std::to_string(seat);
    }
    const std::vector<std::byte>& want = stories_[story].state[c.folded];
    if (!want.empty() && std::memcmp(want.data(), pool.gdn(0).checkpoint[seat].data, want.size()) != 0)
      return "the checkpoint at " + std::to_string(c.folded) + " of seat " + std::to_string(seat);
    return "";
  }

  const OpTable& ops() const { return ops_; }
  Stream& stream() { return *stream_; }

 private:
  using Buffer = std::vector<float>;
  struct Story {
    Buffer in;                                   // [kTokens, width]: conv inputs, a, b, k and v of KV
    Buffer out;                                  // [kTokens, Hv * V] as plain decoding has it
    std::vector<std::vector<std::byte>> state =  // by the position the checkpoint stands at, empty: never
        std::vector<std::vector<std::byte>>(kTokens + 1);
  };

  struct PackedRows {
    std::vector<int32_t> start, seat, kept;
    std::vector<int64_t> first, folded, fold_to;

    void clear() {
      start.assign(1, 0), seat.clear(), kept.clear();
      first.clear(), folded.clear(), fold_to.clear();
    }
    void add(const Turn& turn, Cursor c, int64_t destination) {
      start.push_back(start.back() + turn.length), seat.push_back(turn.seat), kept.push_back(turn.keep);
      first.push_back(c.pos), folded.push_back(c.folded), fold_to.push_back(destination);
    }
    Rows view() const {
      return {.count = static_cast<int32_t>(seat.size()),
              .start = start.data(),
              .seat = seat.data(),
              .first = first.data(),
              .folded = folded.data(),
              .fold_to = fold_to.data()};
    }
  };

  // A story has five parts, and bit i of its number chooses between two of the i-th.
  static constexpr int kParts = 5;
  static constexpr int64_t kForks[kParts] = {0, 3, 6, 10, 14};

  static float number(uint64_t a, uint64_t b) {
    return static_cast<float>(2 * uniform(a, static_cast<int64_t>(b), Coin::draft) - 1);
  }
  const float* input(int story, int64_t p) const { return stories_[story].in.data() + p * width_; }

  void tell(int story) {
    for (int64_t p = 0; p < kTokens; p++) {
      int part = kParts - 1;
      while (kForks[part] > p) part--;
      const uint64_t teller = static_cast<uint64_t>(100 + 2 * part + (story >> part & 1));
      for (int64_t i = 0; i < width_; i++) stories_[story].in.push_back(number(teller, p * width_ + i));
    }
  }

  void fill(int64_t token, const Turn& turn, int64_t p, int32_t index) {
    float* in = in_.data() + token * width_;
    if (index < turn.keep || turn.noise == Noise::other) {
      const int opposite = turn.story ^ (kStories - 1);
      std::copy_n(input(index < turn.keep ? turn.story : opposite, p % kTokens), width_, in);
      return;
    }
    for (int64_t i = 0; i < width_; i++) {
      const float sign = i % 2 ? -1.0f : 1.0f;
      in[i] = turn.noise == Noise::nan        ? std::numeric_limits<float>::quiet_NaN()
              : turn.noise == Noise::infinite ? sign * INFINITY
                                              : sign * 1e38f;
    }
  }

  // The ops of a step on the packed inputs; outputs in out_.
  void call(StatePool& pool, const Rows& rows, bool prefill) {
    const int64_t n = rows.tokens();
    const auto matrix = [n](float* data, int64_t columns, int64_t stride) {
      return View<2>{data, DType::f32, {n, columns}, {stride, 1}};
    };
    const auto heads = [n](float* data, int64_t count, int64_t width, int64_t stride) {
      return View<3>{data, DType::f32, {n, count, width}, {stride, width, 1}};
    };
    float *a = in_.data() + C, *b = a + Hv * G_, *kv = b + Hv, *conv = conv_.data();
    ops_.conv({.rows = rows,
               .x = matrix(in_.data(), C, width_),
               .weight = dense<2>(weight_.data(), DType::f32, {C, kTaps}),
               .ring = pool.conv_ring(0),
               .out = matrix(conv, C, C)},
              *stream_);
    const View<3> g = heads(g_.data(), Hv, G_, Hv * G_), q = heads(conv, Hk, K, C), k = heads(conv + Hk * K, Hk, K, C);
    const View<3> v = heads(conv + 2 * Hk * K, Hv, V, C), out = heads(out_.data(), Hv, V, Hv * V);
    const View<2> beta = matrix(beta_.data(), Hv, Hv);
    ops_.gdn_gates({.a = heads(a, Hv, G_, width_),
                    .b = matrix(b, Hv, width_),
                    .A_log = A_log_.data(),
                    .dt_bias = dt_bias_.data(),
                    .g = g,
                    .beta = beta},
                   *stream_);
    ops_.kv_append({.rows = rows, .k = heads(kv, 1, D, width_), .v = heads(kv + D, 1, D, width_), .kv = pool.kv(0)},
                   *stream_);
    if (options_.rollback == StateRollback::snapshot) {
      const View<5> snapshots = prefill ? View<5>() : pool.snapshots(0);
      ops_.snapshot_verify({.rows = rows,
                            .q = q,
                            .k = k,
                            .v = v,
                            .g = g,
                            .beta = beta,
                            .state = pool.gdn(0).checkpoint,
                            .snapshots = snapshots,
                            .out = out},
                           *stream_);
    } else {
      (prefill ? ops_.gdn_prefill : ops_.gdn_verify)({.rows = rows,
                                                      .q = q,
                                                      .k = k,
                                                      .v = v,
                                                      .g = g,
                                                      .beta = beta,
                                                      .state = pool.gdn(0),
                                                      .grain = pool.grain(),
                                                      .out = out},
                                                     *stream_);
    }
  }

  void commit(StatePool& pool, const std::vector<Turn>& turns, const Rows& rows, bool prefill) {
    if (pool.plan().snapshots_per_seat > 0 && !prefill) {
      ops_.snapshot_commit(
          {.rows = rows, .kept = rows_.kept.data(), .state = pool.gdn(0).checkpoint, .snapshots = pool.snapshots(0)},
          *stream_);
    }
    std::vector<int32_t> seats;
    for (size_t i = 0; i < turns.size(); i++) {
      if (turns[i].seat < 0) continue;
      pool.commit(turns[i].seat, rows.fold_to[i], turns[i].keep);
      if (options_.policy == FoldPolicy::every) seats.push_back(turns[i].seat);
    }
    if (!seats.empty()) materialise(pool, seats, ops_, *stream_);
  }

  std::string run(StatePool& pool, const std::vector<Turn>& turns, bool prefill) {
    rows_.clear();
    for (const Turn& turn : turns) {
      const Cursor c = turn.seat < 0 ? Cursor() : pool.cursor(turn.seat);
      for (int32_t i = 0; i < turn.length; i++) fill(rows_.start.back() + i, turn, c.pos + i, i);
      const Cursor from{.folded = c.folded, .pos = c.pos + (prefill ? turn.length : 0)};
      rows_.add(turn, c, plan_fold(from, options_.F, options_.policy));
    }
    const Rows rows = rows_.view();
    call(pool, rows, prefill);
    std::string difference;
    for (size_t b = 0; b < turns.size() && plain_; b++) {
      if (turns[b].seat < 0) continue;
      const float* got = out_.data() + rows.start[b] * Hv * V;
      const float* want = stories_[turns[b].story].out.data() + rows.first[b] * Hv * V;
      if (std::memcmp(got, want, static_cast<size_t>(turns[b].keep * Hv * V) * sizeof(float)) != 0) {
        difference =
            "outputs from position " + std::to_string(rows.first[b]) + " of seat " + std::to_string(turns[b].seat);
      }
    }
    commit(pool, turns, rows, prefill);
    for (const Turn& turn : turns)
      if (difference.empty() && plain_ && turn.seat >= 0) difference = check(pool, turn.seat, turn.story);
    return difference;
  }

  void decode_plainly(int story) {
    StatePool pool(shape(), pool_options(1, 1));
    const int32_t seat = pool.allocate();
    pool.reserve(seat, kTokens);
    for (int64_t p = 0; p < kTokens; p++) {
      run(pool, {{.seat = seat, .story = story}}, false);
      stories_[story].out.insert(stories_[story].out.end(), out_.begin(), out_.begin() + Hv * V);
      const auto* data = static_cast<const std::byte*>(pool.gdn(0).checkpoint[seat].data);
      stories_[story].state[pool.cursor(seat).folded].assign(data, data + pool.plan().checkpoint_per_seat);
    }
  }

  const TinyOptions options_;
  const int64_t G_, width_;
  const OpTable& ops_ = backend("cpu");
  std::unique_ptr<Stream> stream_ = ops_.make_stream(1);
  Buffer weight_, A_log_, dt_bias_;
  Buffer in_, conv_, g_, beta_, out_;  // packed tokens
  std::vector<Story> stories_ = std::vector<Story>(kStories);
  bool plain_ = false;  // all stories have been decoded, and there is something to compare with
  PackedRows rows_;
};

}  // namespace deltaring::test
