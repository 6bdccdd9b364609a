// snapshot_verify and snapshot_commit.
#include "op_test/inputs.h"

namespace deltaring::op_test {

namespace {

using replay::Pools;

enum SnapshotPool { kState, kSlots };

// The pools and rows of both ops.
class SnapshotJob : public Job {
 public:
  SnapshotJob(const Case& c, const Machine& machine, uint64_t seed)
      : c_(c),
        machine_(machine),
        rows_(plan_rows(c)),
        arrays_(machine.device, rows_.size()),
        pools_(machine.device,
               {{"state", c.shape.checkpoint, c.shape.Hv, c.shape.V, c.shape.K},
                {"snapshots", c.shape.checkpoint, c.T, c.shape.Hv * c.shape.V, c.shape.K}},
               seats_of(c)) {
    for (size_t b = 0; b < rows_.size(); b++) {
      const int64_t pos = 20 + static_cast<int64_t>(b);
      arrays_.add(rows_[b].seat, {.folded = pos, .pos = pos}, pos, rows_[b].length, rows_[b].length);
      if (rows_[b].seat >= 0) fill_state(pools_.block(kState, rows_[b].seat), c.shape.checkpoint, seed, b);
    }
    arrays_.push();
  }

 protected:
  View<4> state() const { return pools_.view<4>(kState, {c_.shape.Hv, c_.shape.V, c_.shape.K}); }
  View<5> snapshots() const { return pools_.view<5>(kSlots, {c_.T, c_.shape.Hv, c_.shape.V, c_.shape.K}); }
  int64_t state_bytes() const { return static_cast<int64_t>(pools_.shape(kState).bytes()); }
  void check_foreign(Failures& failures) const {
    const std::string foreign = pools_.end();
    if (!foreign.empty()) failures.push_back(foreign);
  }

  const Case c_;
  const Machine machine_;
  std::vector<PlannedRow> rows_;
  replay::RowArrays arrays_;
  Pools pools_;
};

class VerifyJob final : public SnapshotJob {
 public:
  VerifyJob(const Case& c, const Machine& machine, uint64_t seed)
      : SnapshotJob(c, machine, seed), tokens_(machine.device, c.shape, arrays_.tokens()) {
    for (size_t b = 0; b < rows_.size(); b++) {
      for (int32_t i = 0; i < rows_[b].length; i++) tokens_.fill(c, seed, arrays_.rows().start[b] + i, b, i);
      const std::byte* from = rows_[b].seat < 0 ? nullptr : pools_.block(kState, rows_[b].seat).data();
      initial_.emplace_back(from, from + (from ? state_bytes() : 0));
    }
    tokens_.push();
    pools_.begin();
  }

  void call() override {
    machine_.table.snapshot_verify({.rows = arrays_.device(),
                                    .q = tokens_.q(),
                                    .k = tokens_.k(),
                                    .v = tokens_.v(),
                                    .g = tokens_.g(),
                                    .beta = tokens_.beta(),
                                    .gates = tokens_.gates(),
                                    .state = state(),
                                    .snapshots = c_.fold ? View<5>() : snapshots(),
                                    .norm = c_.shape.norm,
                                    .scale = c_.shape.scale,
                                    .out = tokens_.out()},
                                   machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull();
    tokens_.pull_and_check(failures);
    std::vector<replay::Expected> want(c_.shape.Hv * c_.shape.V);
    for (size_t b = 0; b < rows_.size(); b++) {
      const auto [seat, before, length] = rows_[b];
      replay::DeltaRule oracle(c_.shape);
      if (seat >= 0) oracle.load(initial_[b].data());
      for (int32_t i = 0; i < length; i++) {
        const int64_t t = arrays_.rows().start[b] + i, row = static_cast<int64_t>(b);
        if (seat >= 0) oracle.step(tokens_.inputs(t), want.data());
        tokens_.check_out(t, row, seat < 0 ? nullptr : want.data(), failures);
        if (seat >= 0) judge_state(oracle, row, i, failures);
      }
    }
    check_foreign(failures);
  }

  int64_t bytes() const override {
    int64_t total = tokens_.bytes();
    for (const PlannedRow& row : rows_)
      if (row.seat >= 0) total += state_bytes() * (1 + (c_.fold ? 1 : row.length));
    return total;
  }

 private:
  // The oracle stands behind token i of the row.
  void judge_state(replay::DeltaRule& oracle, int64_t b, int32_t i, Failures& failures) {
    const int32_t seat = rows_[b].seat;
    if (c_.fold && i + 1 < rows_[b].length) return oracle.round();
    const auto stored = c_.fold ? pools_.block(kState, seat) : pools_.head(kSlots, seat, i);
    pools_.allow(stored);
    if (!oracle.compare(stored.data()))
      failures.push_back(fmt::format("row {}: the state behind token {} is not the oracle's", b, i));
  }

  Tokens tokens_;
  std::vector<std::vector<std::byte>> initial_;
};

// Rows keep all, one, none, half, all but one of their tokens; slots that are not kept hold poison.
class CommitJob final : public SnapshotJob {
 public:
  CommitJob(const Case& c, const Machine& machine, uint64_t seed)
      : SnapshotJob(c, machine, seed), kept_rows_(machine.device, rows_.size()) {
    for (size_t b = 0; b < rows_.size(); b++) {
      const int64_t counts[] = {c.T, 1, 0, c.T / 2, c.T - 1};
      kept_.push_back(rows_[b].seat < 0 ? -99 : static_cast<int32_t>(counts[b % 5]));
      kept_rows_.add(rows_[b].seat, {}, 0, rows_[b].length, kept_.back());
      if (rows_[b].seat < 0 || kept_[b] == 0) continue;
      fill_state(pools_.head(kSlots, rows_[b].seat, kept_[b] - 1), c.shape.checkpoint, seed, 100 + b);
      Pools::fill(pools_.block(kState, rows_[b].seat), replay::kNaN);
    }
    kept_rows_.push();
    pools_.begin();
  }

  void call() override {
    const Rows rows{.count = kept_rows_.device().count, .seat = kept_rows_.device().seat};
    machine_.table.snapshot_commit(
        {.rows = rows, .kept = kept_rows_.kept(), .state = state(), .snapshots = snapshots()}, machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull();
    for (size_t b = 0; b < rows_.size(); b++) {
      if (rows_[b].seat < 0 || kept_[b] == 0) continue;
      const auto state = pools_.block(kState, rows_[b].seat);
      pools_.allow(state);
      if (!std::ranges::equal(state, pools_.head(kSlots, rows_[b].seat, kept_[b] - 1)))
        failures.push_back(fmt::format("row {}: the state is not snapshot {}", b, kept_[b] - 1));
    }
    check_foreign(failures);
  }

  int64_t bytes() const override {
    int64_t total = 0;
    for (size_t b = 0; b < rows_.size(); b++) total += rows_[b].seat >= 0 && kept_[b] > 0 ? 2 * state_bytes() : 0;
    return total;
  }

 private:
  std::vector<int32_t> kept_;
  replay::RowArrays kept_rows_;
};

}  // namespace

std::unique_ptr<Job> make_snapshot_verify_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<VerifyJob>(c, machine, seed);
}

std::unique_ptr<Job> make_snapshot_commit_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<CommitJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
