// Takes requests of a World through any schedule of windows, acceptances, folds, rewinds and batches. Every accepted
// output and all that a seat stores is compared with plain decoding after each call.
#pragma once
#include "ops/replay_world.h"

namespace deltaring::replay {

// What one row does in a step: a window of `length` tokens of which `keep` are accepted.
struct Turn {
  int32_t seat = -1;
  int32_t length = 1, keep = 0;
  Draft draft = Draft::other;
  int64_t fold_to = -1;  // -1: as planned
};

struct Seat {
  int64_t request = -1;  // index into the world's requests; -1 = free
  Cursor cursor{};
  int64_t base = 0;    // the position of its first token
  int64_t tokens = 0;  // accepted so far: what cursor.pos should be, from base on
};

class Driver {
 public:
  Driver(const World& world, int64_t T, int64_t R, int64_t seats, Failures& failures, int threads = 1)
      : world_(world),
        T_(T),
        layer_(world.subject, world.shape, world.weights, T, R, seats, threads),
        seats_(seats),
        failures_(failures) {}

  const World& world() const { return world_; }
  Layer& layer() { return layer_; }
  int64_t R() const { return layer_.R(); }
  int64_t T() const { return T_; }
  const Seat& seat(int64_t i) const { return seats_[i]; }
  int64_t seats() const { return static_cast<int64_t>(seats_.size()); }
  bool live(int64_t i) const { return seats_[i].request >= 0; }
  bool ok() const { return failures_.empty(); }
  int64_t left(int64_t i) const { return world_.length - 1 - seats_[i].tokens; }

  // A request may begin at any multiple of 16, behind as many zeros as the conv looks back: its bits are the same.
  void admit(int64_t seat, int64_t request, int64_t base = 0) {
    seats_[seat] = {.request = request, .cursor = {.folded = base, .pos = base}, .base = base, .tokens = 0};
    layer_.clear(seat);
    for (int64_t p = std::max<int64_t>(0, base - (world_.shape.taps - 1)); p < base; p++)
      Pools::fill(layer_.pools().record(kConv, seat, 0, p), std::byte{0});
  }
  void free(int64_t seat) { seats_[seat] = {}; }
  // pos in [folded, pos].
  void rewind(int64_t seat, int64_t pos) {
    seats_[seat].cursor.pos = pos, seats_[seat].tokens = pos - seats_[seat].base;
  }
  void fork(int64_t from, int64_t to) {
    seats_[to] = seats_[from];
    layer_.copy_seat(from, to);
  }

  // One verify over all turns, then commit.
  void step(const std::vector<Turn>& turns) {
    if (world_.shape.fold_policy() == FoldPolicy::every && !world_.shape.snapshots()) make_room(turns);
    run(turns, false);
  }

  // Prefill: all tokens of every turn are accepted; the checkpoint goes to the grid floor of the end.
  void prefill(std::vector<Turn> turns) {
    for (Turn& turn : turns) turn.keep = turn.length;
    prefill_and_rewind(turns);
  }

  // Prefill, then back to the last token kept, behind which tokens may hold anything. Snapshots keep all.
  void prefill_and_rewind(std::vector<Turn> turns) {
    for (Turn& turn : turns) {
      if (turn.seat < 0 || world_.shape.snapshots()) continue;
      const Cursor c = seats_[turn.seat].cursor;
      const Cursor end{.folded = c.folded, .pos = c.pos + turn.keep};
      if (turn.fold_to < 0) turn.fold_to = std::max(c.folded, plan_fold(end, world_.shape.F, world_.shape.policy));
      if (turn.fold_to < c.pos && c.pos + turn.length - c.folded > layer_.R()) fold({turn.seat});
    }
    run(turns, true);
  }

  // The fold alone, as it may run at any time. to = -1: as planned.
  void fold(const std::vector<int32_t>& which, int64_t to = -1) {
    std::vector<Row> rows;
    for (int32_t seat : which) rows.push_back(row({.seat = seat, .length = 0, .fold_to = to}));
    calls_++;
    Failures found;
    layer_.fold(rows, found);
    report(found);
    for (const Row& r : rows) {
      if (r.seat < 0) continue;
      seats_[r.seat].cursor.folded = r.fold_to;
      check_state(r.seat);
    }
  }

 private:
  Row row(const Turn& turn) const {
    if (turn.seat < 0) return {.length = turn.length, .draft = turn.draft};
    const Seat& s = seats_[turn.seat];
    const Shape& shape = world_.shape;
    const int64_t planned =
        shape.snapshots() ? s.cursor.pos : world_.subject.plan_fold(s.cursor, shape.F, shape.policy);
    return {.seat = turn.seat,
            .request = &world_.requests[s.request].request,
            .cursor = s.cursor,
            .fold_to = turn.fold_to < 0 ? planned : turn.fold_to,
            .token = s.tokens,
            .length = turn.length,
            .genuine = turn.keep,
            .draft = turn.draft};
  }

  // Under `every` a ring may be too short for old records and a window at once: then the fold runs after the commit.
  void make_room(const std::vector<Turn>& turns) {
    std::vector<int32_t> full;
    for (const Turn& t : turns) {
      if (t.seat < 0) continue;
      const Cursor c = seats_[t.seat].cursor;
      if (c.pos - c.folded + t.length > layer_.R()) full.push_back(t.seat);
    }
    if (!full.empty()) fold(full);
  }

  void run(const std::vector<Turn>& turns, bool prefill) {
    std::vector<Row> rows;
    for (const Turn& turn : turns) rows.push_back(row(turn));
    calls_++;
    Failures found;
    const Result result = layer_.run(rows, prefill, found);
    const bool snapshots = world_.shape.snapshots();
    for (size_t i = 0; i < rows.size() && snapshots && !prefill && found.empty(); i++) check_snapshots(rows[i]);
    if (snapshots && !prefill && found.empty()) layer_.commit_snapshots(rows, found);
    report(found);
    for (size_t i = 0; i < rows.size() && ok(); i++) {
      if (rows[i].seat < 0) continue;
      for (int32_t t = 0; t < rows[i].genuine && ok(); t++) check_outputs(rows[i], t, result, result.start[i] + t);
      Seat& s = seats_[rows[i].seat];
      s.cursor = world_.subject.commit(s.cursor, rows[i].fold_to, rows[i].genuine);
      if (snapshots) s.cursor.folded = s.cursor.pos;
      s.tokens += rows[i].genuine;
      check_state(rows[i].seat);
    }
  }

  void check_outputs(const Row& row, int32_t t, const Result& r, int64_t i) {
    const Shape& s = world_.shape;
    const Truth& truth = world_.requests[seats_[row.seat].request];
    const int64_t p = row.token + t, outputs = s.Hv * s.V;
    const auto compare = [&](const char* what, const Matrix& got, const std::vector<float>& want, int64_t width) {
      if (std::memcmp(got.values(i).data(), &want[p * width], width * sizeof(float)) != 0)
        report(
            {fmt::format("seat {}: {} of token {} (window index {} of {}) differs", row.seat, what, p, t, row.length)});
    };
    compare("conv", r.conv, truth.conv, s.channels());
    if (!s.fused) compare("g", r.g, truth.g, s.Hv * s.G), compare("beta", r.beta, truth.beta, s.Hv);
    if (world_.exact()) return compare("output", r.out, truth.out, outputs);
    for (int64_t c = 0; c < outputs; c++) {
      const float want = truth.out[p * outputs + c];
      if (!(std::fabs(r.out.at(i, c) - want) <= truth.slack[p * outputs + c]))
        return report({fmt::format("seat {}: output {} of token {} is {}, want {} +- {}", row.seat, c, p,
                                   r.out.at(i, c), want, truth.slack[p * outputs + c])});
    }
  }

  // Behind every genuine token stands the state of plain decoding.
  void check_snapshots(const Row& row) {
    if (row.seat < 0) return;
    const Truth& truth = world_.requests[seats_[row.seat].request];
    for (int32_t i = 0; i < row.genuine; i++) {
      if (!std::ranges::equal(truth.checkpoint.at(row.token + i + 1), layer_.pools().head(kSnapshots, row.seat, i)))
        return report({fmt::format("seat {}: snapshot {} of {} differs", row.seat, i, row.length)});
    }
  }

  // Everything a seat stores is a function of the accepted tokens.
  void check_state(int64_t seat) {
    const Shape& s = world_.shape;
    const Pools& pools = layer_.pools();
    const Seat& at = seats_[seat];
    const Truth& truth = world_.requests[at.request];
    const auto wrong = [&](const std::string& what) {
      report({fmt::format("seat {} at folded {}, pos {}: {}", seat, at.cursor.folded, at.cursor.pos, what)});
    };
    if (at.cursor.pos != at.base + at.tokens) return wrong(fmt::format("{} tokens were accepted", at.tokens));
    if (world_.exact()) {
      const auto stored = truth.checkpoint.find(at.cursor.folded - at.base);
      if (stored == truth.checkpoint.end()) return wrong("plain decoding never has a checkpoint here");
      if (!std::ranges::equal(stored->second, pools.block(kCheckpoint, seat))) return wrong("the checkpoint differs");
    }
    for (int pool = kRecordK; pool <= kConv; pool++) {
      const int64_t back = pool == kConv ? s.taps - 1 : 0, oldest = std::max(at.base, at.cursor.folded - back);
      const PoolShape& shape = pools.shape(pool);
      for (int64_t h = 0; h < shape.heads; h++) {
        for (int64_t p = oldest; p < at.cursor.pos; p++) {
          const auto stored = pools.record(pool, seat, h, p);
          if (std::memcmp(stored.data(), &truth.record[pool][((p - at.base) * shape.heads + h) * stored.size()],
                          stored.size()))
            return wrong(fmt::format("{} of position {}, head {} differs", shape.name, p, h));
        }
      }
    }
  }

  void report(const Failures& found) {
    for (const std::string& f : found)
      failures_.push_back(fmt::format("{} ({} T={} R={} call {}): {}", world_.subject.table.name, world_.shape.name(),
                                      T_, layer_.R(), calls_, f));
  }

  const World& world_;
  int64_t T_;
  Layer layer_;
  std::vector<Seat> seats_;
  Failures& failures_;
  int64_t calls_ = 0;
};

}  // namespace deltaring::replay
