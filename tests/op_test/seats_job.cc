// seat_copy, seat_pack and seat_unpack.
#include <bit>

#include "op_test/inputs.h"

namespace deltaring::op_test {

namespace {

using replay::Pools, replay::PoolShape;

enum SeatPool { kCheckpoint, kRecordK, kRecordV, kRecordG, kRecordBeta, kConv, kParts };
constexpr int kLayers = 3;

int64_t ring_rows(const Case& c) {
  return std::max(default_ring_rows(c.T, c.shape.F, c.shape.policy),
                  static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(c.n + c.T))));
}

// The tensors of all layers; conv rings have the dtype of the case's tokens.
std::vector<PoolShape> pool_shapes(const Case& c) {
  const Shape& s = c.shape;
  const int64_t R = ring_rows(c);
  std::vector<PoolShape> all;
  for (int layer = 0; layer < kLayers; layer++) {
    const PoolShape parts[kParts] = {
        {"checkpoint", s.checkpoint, s.Hv, s.V, s.K}, {"record_k", s.record, s.Hk, R, s.K},
        {"record_v", s.record, s.Hv, R, s.V},         {"record_g", DType::f32, s.Hv, R, s.G},
        {"record_beta", DType::f32, s.Hv, R, 1},      {"conv ring", s.tokens, 1, 2 * R, s.channels()}};
    all.insert(all.end(), parts, parts + kParts);
  }
  return all;
}

// Any bytes, NaN of every kind among them.
void scramble(std::span<std::byte> region, uint64_t seed, uint64_t what) {
  uint64_t word = seed * 977 + what + 1;
  for (std::byte& b : region) word = word * 6364136223846793005 + 1442695040888963407, b = std::byte(word >> 56);
}

class SeatJob : public Job {
 public:
  SeatJob(const Case& c, const Machine& machine, uint64_t seed, int64_t seats)
      : c_(c), machine_(machine), pools_(machine.device, pool_shapes(c), seats) {
    for (int64_t seat = 0; seat < seats; seat++)
      for (int pool = 0; pool < pools_.count(); pool++) scramble(pools_.block(pool, seat), seed, 100 * seat + pool);
  }

 protected:
  SeatTensor tensor(int pool) const {
    const PoolShape& s = pools_.shape(pool);
    return seat_tensor(pools_.view<4>(pool, {s.heads, s.slots, s.width}));
  }
  void check_foreign(Failures& failures) const {
    const std::string foreign = pools_.end();
    if (!foreign.empty()) failures.push_back(foreign);
  }

  const Case c_;
  const Machine machine_;
  Pools pools_;
};

// Pairs run from the last seat down to seat 2i, with one left out by each side and one of a seat with itself.
class CopyJob final : public SeatJob {
 public:
  CopyJob(const Case& c, const Machine& machine, uint64_t seed)
      : SeatJob(c, machine, seed, 2 * c.B + 1), from_(machine.device, c.B * 4), to_(machine.device, c.B * 4) {
    for (int32_t i = 0; i < c.B; i++) {
      pairs_.push_back({static_cast<int32_t>(2 * c.B - 2 * i), 2 * i + 1});
      if (c.ragged && i == 1) pairs_[i].first = -1;
      if (c.ragged && i == 3) pairs_[i].second = -1;
      if (c.ragged && i == 4) pairs_[i].second = pairs_[i].first;
      reinterpret_cast<int32_t*>(from_.data())[i] = pairs_[i].first;
      reinterpret_cast<int32_t*>(to_.data())[i] = pairs_[i].second;
    }
    for (int pool = 0; pool < pools_.count(); pool++) tensors_.push_back(tensor(pool));
    from_.push(), to_.push(), pools_.begin();
  }

  void call() override {
    machine_.table.seat_copy({.tensors = tensors_,
                              .count = static_cast<int32_t>(c_.B),
                              .from = reinterpret_cast<int32_t*>(from_.device()),
                              .to = reinterpret_cast<int32_t*>(to_.device())},
                             machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull();
    for (const auto& [from, to] : pairs_) {
      for (int pool = 0; pool < pools_.count() && from >= 0 && to >= 0; pool++) {
        const auto copy = pools_.block(pool, to);
        if (!std::ranges::equal(copy, pools_.block(pool, from)))
          failures.push_back(fmt::format("{} of seat {} is not that of seat {}", pools_.shape(pool).name, to, from));
        pools_.allow(copy);
      }
    }
    check_foreign(failures);
  }

  int64_t bytes() const override {
    int64_t seat = 0, live = 0;
    for (int pool = 0; pool < pools_.count(); pool++) seat += static_cast<int64_t>(pools_.shape(pool).bytes());
    for (const auto& [from, to] : pairs_) live += from >= 0 && to >= 0 && from != to;
    return 2 * seat * live;
  }

 private:
  std::vector<std::pair<int32_t, int32_t>> pairs_;
  std::vector<SeatTensor> tensors_;
  replay::Buffer from_, to_;
};

// One seat at a cursor whose records wrap around the ring.
class PackJob final : public SeatJob {
 public:
  PackJob(const Case& c, const Machine& machine, uint64_t seed)
      : SeatJob(c, machine, seed, 3),
        cursor_{.folded = 3 * ring_rows(c) - 8, .pos = 3 * ring_rows(c) - 8 + c.n},
        packed_(machine.device, live_size()) {
    for (int layer = 0; layer < kLayers; layer++) layers_.push_back(this->layer(layer));
    scramble(packed_.bytes(), seed, 99);
    before_ = packed_.copy();
    packed_.push(), pools_.begin();
  }

  void call() override {
    const auto op = unpack() ? machine_.table.seat_unpack : machine_.table.seat_pack;
    op({.layers = layers_,
        .seat = kSeat,
        .cursor = cursor_,
        .taps = c_.shape.taps,
        .bytes = packed_.device(),
        .size = static_cast<int64_t>(packed_.bytes().size())},
       machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull(), packed_.pull();
    if (!packed_.fences_intact()) failures.push_back("the packed bytes were written out of bounds");
    if (unpack() && packed_.copy() != before_) failures.push_back("the packed bytes were written");
    size_t at = 0;
    each_live([&](std::span<std::byte> piece, const char* name) {
      if (!std::ranges::equal(piece, packed_.bytes().subspan(at, piece.size())) && failures.size() < 4)
        failures.push_back(fmt::format("{} is not what stands at byte {}", name, at));
      if (unpack()) pools_.allow(piece);
      at += piece.size();
    });
    check_foreign(failures);
  }

  int64_t bytes() const override { return 2 * static_cast<int64_t>(packed_.bytes().size()); }

 private:
  static constexpr int32_t kSeat = 1;

  bool unpack() const { return c_.is("seat_unpack"); }

  // The order that the contract states, spelled out.
  template <class Visit>
  void each_live(const Visit& visit) const {
    for (int first = 0; first < kLayers * kParts; first += kParts) {
      const auto record = [&](int part, int64_t head, int64_t p) {
        visit(pools_.record(first + part, kSeat, head, p), pools_.shape(first + part).name);
      };
      visit(pools_.block(first + kCheckpoint, kSeat), "checkpoint");
      for (int64_t p = cursor_.folded; p < cursor_.pos; p++) {
        for (int64_t h = 0; h < c_.shape.Hk; h++) record(kRecordK, h, p);
        for (int64_t h = 0; h < c_.shape.Hv; h++)
          record(kRecordV, h, p), record(kRecordG, h, p), record(kRecordBeta, h, p);
      }
      for (int64_t p = cursor_.folded - (c_.shape.taps - 1); p < cursor_.pos; p++) record(kConv, 0, p);
    }
  }
  size_t live_size() const {
    size_t size = 0;
    each_live([&](std::span<std::byte> piece, const char*) { size += piece.size(); });
    return size;
  }

  SeatLayer layer(int i) const {
    const Shape& s = c_.shape;
    const int64_t R = ring_rows(c_);
    const int at = i * kParts;
    return {.state = {.checkpoint = pools_.view<4>(at + kCheckpoint, {s.Hv, s.V, s.K}),
                      .record_k = pools_.view<4>(at + kRecordK, {s.Hk, R, s.K}),
                      .record_v = pools_.view<4>(at + kRecordV, {s.Hv, R, s.V}),
                      .record_g = pools_.view<4>(at + kRecordG, {s.Hv, R, s.G}),
                      .record_beta = pools_.view<3>(at + kRecordBeta, {s.Hv, R})},
            .conv = pools_.view<3>(at + kConv, {2 * R, s.channels()})};
  }

  Cursor cursor_;
  std::vector<SeatLayer> layers_;
  replay::Buffer packed_;
  std::vector<std::byte> before_;
};

}  // namespace

std::unique_ptr<Job> make_seat_copy_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<CopyJob>(c, machine, seed);
}

std::unique_ptr<Job> make_seat_pack_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<PackJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
