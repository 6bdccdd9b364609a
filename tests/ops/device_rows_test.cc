// Rows whose numbers lie where the host cannot look. Whatever they say, a call writes zeros for such a row, if it says
// where its outputs are, and nothing else; its neighbours do not notice.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <tuple>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/replay_layer.h"

namespace deltaring::replay {
namespace {

// What the generic kernel serves, and what tensor cores may.
constexpr Shape kShapes[] = {
    {.Hk = 1, .Hv = 2, .K = 8, .V = 12, .checkpoint = DType::bf16, .record = DType::bf16, .F = 8},
    {.Hk = 1,
     .Hv = 2,
     .K = 128,
     .V = 128,
     .checkpoint = DType::bf16,
     .record = DType::bf16,
     .F = 8,
     .tokens = DType::bf16}};
constexpr int64_t kSeats = 3, R = 16, kSlots = 4;
constexpr int32_t T = 4;
enum PoolIndex { kState, kK, kV, kG, kBeta, kRing, kSnapshot };

// Row 1 of 3; rows 0 and 2 have seats 0 and 2, eight records behind a checkpoint at 8 and T tokens each.
struct Attack {
  const char* name;
  int32_t seat = 1;
  int64_t first = 16, folded = 8, fold_to = 16;
  int32_t kept = 1;
};

constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max(), kMin32 = std::numeric_limits<int32_t>::min();

// What no op on seats may follow; `first` counts for those that read positions.
constexpr Attack kSeatAttacks[] = {
    {"a seat behind the last", 3}, {"a seat far behind", kMax32}, {"seat -2", -2}, {"the least seat", kMin32}};
constexpr Attack kFirstAttacks[] = {{"first negative", 1, -1, 0, 0},
                                    {"first the least", 1, kMin, 0, 0},
                                    {"first the greatest", 1, kMax, kMax - 7, kMax - 7}};
constexpr Attack kCursorAttacks[] = {{"folded behind first", 1, 8, 16, 16},
                                     {"folded negative", 1, 4, -8, 0},
                                     {"fold_to before folded", 1, 16, 8, 0},
                                     {"fold_to far ahead", 1, 16, 8, 80},
                                     {"folded off the grid", 1, 16, 9, 16},
                                     {"fold_to off the grid", 1, 16, 8, 15},
                                     {"folded the least", 1, 16, kMin, 16},
                                     {"fold_to the greatest", 1, 16, 8, kMax},
                                     {"more records than the ring has", 1, 40, 16, 40}};

// Memory for three rows, everything in it finite, and the ops on it.
class Ground {
 public:
  Ground(const OpTable& table, const Shape& shape) : table_(table), shape_(shape) {}

  void conv(const Rows& rows) {
    const int64_t C = shape_.channels();
    table_.conv({.rows = rows,
                 .x = x_.view(),
                 .weight = dense<2>(weight_.device(), DType::f32, {C, shape_.taps}),
                 .ring = pools_.view<3>(kRing, {R, C}),
                 .out = y_.view()},
                *stream_);
  }
  void verify(const Rows& rows) { table_.gdn_verify(window(rows), *stream_); }
  void prefill(const Rows& rows) { table_.gdn_prefill(window(rows), *stream_); }
  void fold(const Rows& rows) { table_.gdn_fold({.rows = rows, .state = state(), .grain = shape_.F}, *stream_); }
  void snapshot_verify(const Rows& rows) {
    const GdnVerifyArgs w = window(rows);
    table_.snapshot_verify({.rows = rows,
                            .q = w.q,
                            .k = w.k,
                            .v = w.v,
                            .g = w.g,
                            .beta = w.beta,
                            .state = w.state.checkpoint,
                            .snapshots = snapshots(),
                            .out = w.out},
                           *stream_);
  }
  void snapshot_commit(const Rows& rows) {
    table_.snapshot_commit(
        {.rows = rows, .kept = arrays_->kept(), .state = state().checkpoint, .snapshots = snapshots()}, *stream_);
  }

  struct Left {
    std::vector<std::byte> pools, outputs;
    friend bool operator==(const Left&, const Left&) = default;
  };
  // What the op leaves behind when row 1 is the attack; `start` and `longest` as the rows have them.
  Left run(void (Ground::*op)(const Rows&), const Attack& attack, const std::vector<int32_t>& start = kStart,
           int32_t longest = T) {
    fill();
    arrays_.emplace(device_, 3);
    arrays_->add(0, {8, 16}, 16, T, 2);
    arrays_->add(1, {attack.folded, attack.first}, attack.fold_to, T, attack.kept);
    arrays_->add(2, {8, 16}, 16, T, T);
    arrays_->set(1, attack.seat, start);
    arrays_->push();
    Rows rows = arrays_->device();
    rows.longest = longest;
    (this->*op)(rows);
    pools_.pull(), y_.pull(), out_.pull();
    EXPECT_TRUE(y_.gaps_intact() && out_.gaps_intact());
    Left left{pools_.copy(), y_.copy()};
    const auto out = out_.copy();
    left.outputs.insert(left.outputs.end(), out.begin(), out.end());
    return left;
  }

  // Whether outputs of tokens [from, to) are all `value`, NaN for as they were.
  bool all(const Matrix& m, int32_t from, int32_t to, float value) const {
    bool same = true;
    for (int32_t t = from; t < to; t++)
      for (const float x : m.values(t)) same = same && (std::isnan(value) ? std::isnan(x) : x == value);
    return same;
  }
  bool seats_as_they_were(int64_t from) {
    const std::vector<std::byte> after = pools_.copy();
    fill();
    const std::byte* begin = pools_.block(0, 0).data();
    bool same = true;
    for (int pool = 0; pool < pools_.count(); pool++)
      for (int64_t seat = from; seat < kSeats; seat++) {
        const auto block = pools_.block(pool, seat);
        same = same && std::ranges::equal(block, std::span(after).subspan(block.data() - begin, block.size()));
      }
    return same;
  }
  const Matrix& y() const { return y_; }
  const Matrix& out() const { return out_; }

  static inline const std::vector<int32_t> kStart{0, T, 2 * T, 3 * T};

 private:
  GdnVerifyArgs window(const Rows& rows) const {
    const Shape& s = shape_;
    return {.rows = rows,
            .q = x_.heads(0, s.Hk, s.K),
            .k = x_.heads(s.Hk * s.K, s.Hk, s.K),
            .v = x_.heads(2 * s.Hk * s.K, s.Hv, s.V),
            .g = g_.heads(0, s.Hv, 1),
            .beta = beta_.view(),
            .state = state(),
            .grain = s.F,
            .out = out_.heads(0, s.Hv, s.V),
            .bit_exact = true};
  }
  GdnState state() const {
    const Shape& s = shape_;
    return {.checkpoint = pools_.view<4>(kState, {s.Hv, s.V, s.K}),
            .record_k = pools_.view<4>(kK, {s.Hk, R, s.K}),
            .record_v = pools_.view<4>(kV, {s.Hv, R, s.V}),
            .record_g = pools_.view<4>(kG, {s.Hv, R, s.G}),
            .record_beta = pools_.view<3>(kBeta, {s.Hv, R})};
  }
  View<5> snapshots() const { return pools_.view<5>(kSnapshot, {kSlots, shape_.Hv, shape_.V, shape_.K}); }

  void fill() {
    for (int pool = 0; pool < pools_.count(); pool++) {
      const DType t = pools_.shape(pool).dtype;
      for (int64_t seat = 0; seat < kSeats; seat++) {
        const auto block = pools_.block(pool, seat);
        const auto count = static_cast<int64_t>(block.size() / size_of(t));
        for (int64_t i = 0; i < count; i++)
          store_from_float(block.data(), t, i, 0.5f * uniform(pool, seat, i, 1) - 0.5f);
      }
    }
    for (const Matrix* m : {&x_, &g_, &beta_, &y_, &out_})
      for (int64_t t = 0; t < m->rows(); t++) {
        std::vector<float> values(m->columns(), std::nanf(""));
        for (int64_t c = 0; c < m->columns() && m != &y_ && m != &out_; c++)
          values[c] = 0.5f * uniform(7, t, c, 1) - 0.5f;
        m->set_row(t, values.data());
      }
    for (int64_t i = 0; i < shape_.channels() * shape_.taps; i++)
      reinterpret_cast<float*>(weight_.data())[i] = uniform(8, i, 0, 1);
    for (const Matrix* m : {&x_, &g_, &beta_, &y_, &out_}) m->push();
    weight_.push(), pools_.begin();
  }

  const OpTable& table_;
  const Shape shape_;
  Device device_{table_};
  std::unique_ptr<Stream> stream_ = table_.make_stream(1);
  Matrix x_{device_, 3 * T, shape_.channels(), shape_.tokens}, g_{device_, 3 * T, shape_.Hv},
      beta_{device_, 3 * T, shape_.Hv};
  Matrix y_{device_, 3 * T, shape_.channels(), shape_.tokens}, out_{device_, 3 * T, shape_.Hv*shape_.V};
  Buffer weight_{device_, shape_.channels() * shape_.taps * sizeof(float)};
  Pools pools_{device_,
               {{"checkpoint", shape_.checkpoint, shape_.Hv, shape_.V, shape_.K},
                {"record_k", shape_.record, shape_.Hk, R, shape_.K},
                {"record_v", shape_.record, shape_.Hv, R, shape_.V},
                {"record_g", DType::f32, shape_.Hv, R, shape_.G},
                {"record_beta", DType::f32, shape_.Hv, R, 1},
                {"conv ring", DType::f32, 1, R, shape_.channels()},
                {"snapshots", shape_.checkpoint, kSlots, shape_.Hv* shape_.V, shape_.K}},
               kSeats};
  std::optional<RowArrays> arrays_;
};

// What each op reads of a row beside its seat.
struct Target {
  const char* name;
  void (Ground::*op)(const Rows&);
  const Matrix& (Ground::*outputs)() const;  // null: it has none, nor tokens
  bool first, cursors;
};
const Target kTargets[] = {{"conv", &Ground::conv, &Ground::y, true, false},
                           {"verify", &Ground::verify, &Ground::out, true, true},
                           {"prefill", &Ground::prefill, &Ground::out, true, true},
                           {"fold", &Ground::fold, nullptr, true, true},
                           {"snapshot_verify", &Ground::snapshot_verify, &Ground::out, true, false},
                           {"snapshot_commit", &Ground::snapshot_commit, nullptr, false, false}};

class DeviceRows : public testing::TestWithParam<std::tuple<const OpTable*, Shape>> {
 protected:
  // The attacked row comes out as zeros, and all else is as it is with nobody in row 1.
  void expect_harmless(const Target& target, const Attack& attack) {
    SCOPED_TRACE(std::string(target.name) + ": " + attack.name);
    const Ground::Left quiet = ground_.run(target.op, {"nobody", -1});
    EXPECT_TRUE(ground_.run(target.op, attack) == quiet);
    EXPECT_TRUE(!target.outputs || ground_.all((ground_.*target.outputs)(), T, 2 * T, 0));
  }
  Ground ground_{*std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(DeviceRows, ATrueSeatIsServed) {
  for (const Target& target : kTargets)
    EXPECT_FALSE(ground_.run(target.op, {"a true one"}) == ground_.run(target.op, {"nobody", -1})) << target.name;
}

TEST_P(DeviceRows, NumbersThatCannotBe) {
  for (const Target& target : kTargets) {
    for (const Attack& attack : kSeatAttacks) expect_harmless(target, attack);
    for (const Attack& attack : kFirstAttacks)
      if (target.first) expect_harmless(target, attack);
    for (const Attack& attack : kCursorAttacks)
      if (target.cursors) expect_harmless(target, attack);
  }
  expect_harmless(kTargets[1], {"a window past the ring", 1, 29, 16, 16});
  expect_harmless(kTargets[2], {"a prefill past the ring", 1, 29, 16, 16});
  expect_harmless(kTargets[1], {"a fold inside the window", 1, 22, 16, 24});
  for (int32_t kept : {-1, kMin32, static_cast<int32_t>(kSlots) + 1, kMax32})
    expect_harmless(kTargets[5], {.name = "a snapshot that is none", .kept = kept});
}

TEST_P(DeviceRows, MoreTokensThanTheLongestRow) {
  for (const Target& target : kTargets) {
    if (!target.outputs) continue;
    ground_.run(target.op, {"too long"}, Ground::kStart, T - 1);
    EXPECT_TRUE(ground_.all((ground_.*target.outputs)(), 0, 3 * T, 0)) << target.name;
    EXPECT_TRUE(ground_.seats_as_they_were(0)) << target.name;
  }
}

// Rows 1 and 2 begin or end where there is no token: neither they nor their seats are touched.
TEST_P(DeviceRows, TokensThatAreNone) {
  const std::vector<int32_t> starts[] = {
      {0, T, T - 2, kMax32}, {0, T, -5, kMin32}, {0, T, kMax32, 3 * T + 1}, {0, T, 3 * T + 1, 3 * T + 2}};
  for (const Target& target : kTargets) {
    for (const std::vector<int32_t>& start : starts) {
      if (!target.outputs) continue;
      ground_.run(target.op, {"nowhere"}, start, 3 * T);
      EXPECT_TRUE(ground_.all((ground_.*target.outputs)(), T, 3 * T, std::nanf(""))) << target.name;
      EXPECT_TRUE(ground_.seats_as_they_were(1)) << target.name;
    }
  }
}

TEST_P(DeviceRows, TheLongestRowIsAskedFor) {
  for (const Target& target : kTargets) {
    if (!target.outputs) continue;
    try {
      ground_.run(target.op, {"nothing"}, Ground::kStart, 0);
      ADD_FAILURE() << target.name << " went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("rows.longest is 0"), std::string::npos) << error.what();
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceRows);
INSTANTIATE_TEST_SUITE_P(, DeviceRows,
                         testing::Combine(testing::ValuesIn(on_device(backends())), testing::ValuesIn(kShapes)),
                         [](const auto& info) {
                           return fmt::format("{}_K{}", std::get<0>(info.param)->name, std::get<1>(info.param).K);
                         });

}  // namespace
}  // namespace deltaring::replay
