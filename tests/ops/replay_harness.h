// Requests decoded plainly, and a driver that decodes them again through any schedule of windows, acceptances, folds,
// rewinds and batches. Every accepted output and all stored state must have the bits of plain decoding.
#pragma once
#include <map>

#include "ops/replay_layer.h"

namespace deltaring::replay {

// One request decoded with one token a step, alone, in one thread, judged by the float64 oracle on the way.
struct Truth {
  int64_t request = 0;
  std::vector<float> conv, g, beta, out;                 // [length, C], [length, Hv], [length, Hv], [length, Hv * V]
  std::vector<double> slack;                             // [length, Hv * V] where no bits are promised
  std::map<int64_t, std::vector<std::byte>> checkpoint;  // by the position it stands at
  std::vector<std::byte> record[kPools];                 // [length, heads, width] as a ring shall hold them
};

namespace detail {

inline bool near(float got, const Expected& want) { return std::fabs(got - want.value) <= want.tolerance; }

inline void judge_inputs(const Shape& s, const Parameters& w, int64_t request, int64_t position, const Result& r,
                         Failures& failures) {
  std::vector<float> x(s.taps * s.channels()), a(s.Hv), b(s.Hv);
  for (int64_t j = 0; j < s.taps; j++) {
    const int64_t p = position - (s.taps - 1) + j;
    if (p >= 0) fill_token(s, request, p, Draft::truth, &x[j * s.channels()], a.data(), b.data());
  }
  for (int64_t c = 0; c < s.channels(); c++) {
    const Expected y = expected_conv(s, w, c, [&](int64_t j, int64_t i) { return x[j * s.channels() + i]; });
    if (!near(r.conv.row(0)[c], y))
      return failures.push_back(fmt::format("conv of channel {} at position {} is {}, oracle {} +- {}", c, position,
                                            r.conv.row(0)[c], y.value, y.tolerance));
  }
  for (int64_t j = 0; j < s.Hv; j++) {
    const Expected g = expected_g(w, j, a[j]), beta = expected_beta(b[j]);
    if (!near(r.g.row(0)[j], g) || !near(r.beta.row(0)[j], beta))
      return failures.push_back(
          fmt::format("gates of head {} at position {} are g {}, beta {}, oracle {} +- {}, {} +- {}", j, position,
                      r.g.row(0)[j], r.beta.row(0)[j], g.value, g.tolerance, beta.value, beta.tolerance));
  }
}

inline void append(std::vector<float>& to, const float* from, int64_t count) {
  to.insert(to.end(), from, from + count);
}

inline void append(std::vector<std::byte>& to, DType t, const float* from, int64_t count) {
  const size_t end = to.size();
  to.resize(end + count * size_of(t));
  for (int64_t i = 0; i < count; i++) store_from_float(&to[end], t, i, from[i]);
}

// What the rings shall hold of a token: raw conv inputs, k and v rounded to the record dtype, exact gates.
inline void append_records(Truth& truth, const Shape& s, int64_t position, const Result& r) {
  std::vector<float> x(s.channels()), a(s.Hv), b(s.Hv);
  fill_token(s, truth.request, position, Draft::truth, x.data(), a.data(), b.data());
  append(truth.record[kRecordK], s.record, r.conv.row(0) + s.Hk * s.K, s.Hk * s.K);
  append(truth.record[kRecordV], s.record, r.conv.row(0) + 2 * s.Hk * s.K, s.Hv * s.V);
  append(truth.record[kRecordG], DType::f32, r.g.row(0), s.Hv);
  append(truth.record[kRecordBeta], DType::f32, r.beta.row(0), s.Hv);
  append(truth.record[kConv], DType::f32, x.data(), s.channels());
}

}  // namespace detail

inline Truth decode_plainly(const Subject& subject, const Shape& s, int64_t request, int64_t length,
                            Failures& failures) {
  Truth truth{
      .request = request, .conv = {}, .g = {}, .beta = {}, .out = {}, .slack = {}, .checkpoint = {}, .record = {}};
  Layer layer(subject, s, 1, default_ring_rows(1, s.F, s.policy), 1, 1);
  layer.clear(0);
  DeltaRule oracle(s);
  std::vector<Expected> want(s.Hv * s.V);
  Cursor cursor{};
  for (int64_t p = 0; p < length && failures.empty(); p++) {
    const int64_t fold_to = plan_fold(cursor, s.F, s.policy);
    const Row row{
        .seat = 0, .request = request, .cursor = cursor, .fold_to = fold_to, .token = p, .length = 1, .genuine = 1};
    const Result r = layer.run({row}, false, failures);
    cursor = {.folded = fold_to, .pos = p + 1};
    if (!truth.checkpoint.contains(fold_to)) {
      const auto stored = layer.block(kCheckpoint, 0);
      truth.checkpoint[fold_to].assign(stored.begin(), stored.end());
      if (fold_to == p && !oracle.compare(stored.data()))
        failures.push_back(fmt::format("the checkpoint at {} is not the oracle's state", p));
    }
    detail::judge_inputs(s, layer.weights(), request, p, r, failures);
    oracle.step(r.conv.row(0), r.g.row(0), r.beta.row(0), want.data());
    for (int64_t i = 0; i < s.Hv * s.V && failures.empty(); i++) {
      if (!detail::near(r.out.row(0)[i], want[i]))
        failures.push_back(fmt::format("output {} at position {} is {}, oracle {} +- {}", i, p, r.out.row(0)[i],
                                       want[i].value, want[i].tolerance));
      truth.slack.push_back(oracle.rounded_each_step(i) + want[i].tolerance);
    }
    detail::append_records(truth, s, p, r);
    detail::append(truth.conv, r.conv.row(0), s.channels());
    detail::append(truth.g, r.g.row(0), s.Hv);
    detail::append(truth.beta, r.beta.row(0), s.Hv);
    detail::append(truth.out, r.out.row(0), s.Hv * s.V);
  }
  return truth;
}

// A subject, a shape, and requests that it decoded plainly. `failures` holds what the oracle had to say about them.
struct World {
  Subject subject;
  Shape shape;
  int64_t length;  // tokens of each request
  std::vector<Truth> requests;
  Failures failures;

  World(const Subject& subject, const Shape& shape, int64_t requests_, int64_t length, int64_t first_request = 0)
      : subject(subject), shape(shape), length(length) {
    for (int64_t i = 0; i < requests_ && failures.empty(); i++)
      requests.push_back(decode_plainly(subject, shape, first_request + i, length, failures));
  }
  // Whether the exact rule promises the bits of plain decoding.
  bool exact() const {
    return shape.policy == FoldPolicy::grid || (shape.checkpoint == DType::f32 && subject.f32_state);
  }
};

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
  int64_t tokens = 0;  // accepted so far: what cursor.pos should be
};

class Driver {
 public:
  Driver(const World& world, int64_t T, int64_t R, int64_t seats, Failures& failures, int threads = 1)
      : world_(world),
        T_(T),
        layer_(world.subject, world.shape, T, R, seats, threads),
        seats_(seats),
        failures_(failures) {}

  Layer& layer() { return layer_; }
  int64_t T() const { return T_; }
  const Seat& seat(int64_t i) const { return seats_[i]; }
  int64_t seats() const { return static_cast<int64_t>(seats_.size()); }
  bool ok() const { return failures_.empty(); }
  int64_t left(int64_t i) const { return world_.length - 1 - seats_[i].tokens; }

  void admit(int64_t seat, int64_t request) {
    seats_[seat] = {.request = request, .cursor = {}, .tokens = 0};
    layer_.clear(seat);
  }
  void free(int64_t seat) { seats_[seat] = {}; }
  void rewind(int64_t seat, int64_t pos) { seats_[seat].cursor.pos = seats_[seat].tokens = pos; }
  void fork(int64_t from, int64_t to) {
    seats_[to] = seats_[from];
    layer_.copy_seat(from, to);
  }

  // One verify over all turns, then commit.
  void step(const std::vector<Turn>& turns) {
    if (world_.shape.policy == FoldPolicy::every) make_room(turns);
    run(turns, false);
  }

  // Prefill: all tokens of every turn are accepted; the checkpoint goes to the grid floor of the end.
  void prefill(std::vector<Turn> turns) {
    for (Turn& turn : turns) {
      turn.keep = turn.length;
      if (turn.seat < 0) continue;
      const Cursor c = seats_[turn.seat].cursor;
      const Cursor end{.folded = c.folded, .pos = c.pos + turn.length};
      if (turn.fold_to < 0) turn.fold_to = std::max(c.folded, plan_fold(end, world_.shape.F, world_.shape.policy));
      if (turn.fold_to < c.pos && end.pos - c.folded > layer_.R()) fold({turn.seat});
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
    const int64_t planned = world_.subject.plan_fold(s.cursor, world_.shape.F, world_.shape.policy);
    return {.seat = turn.seat,
            .request = world_.requests[s.request].request,
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
    report(found);
    for (size_t i = 0; i < rows.size() && ok(); i++) {
      if (rows[i].seat < 0) continue;
      for (int32_t t = 0; t < rows[i].genuine && ok(); t++) check_outputs(rows[i], t, result, result.start[i] + t);
      Seat& s = seats_[rows[i].seat];
      s.cursor = world_.subject.commit(s.cursor, rows[i].fold_to, rows[i].genuine);
      s.tokens += rows[i].genuine;
      check_state(rows[i].seat);
    }
  }

  void check_outputs(const Row& row, int32_t t, const Result& r, int64_t i) {
    const Shape& s = world_.shape;
    const Truth& truth = world_.requests[seats_[row.seat].request];
    const int64_t p = row.token + t, outputs = s.Hv * s.V;
    const auto compare = [&](const char* what, const float* got, const std::vector<float>& want, int64_t width) {
      if (std::memcmp(got, &want[p * width], width * sizeof(float)) != 0)
        report(
            {fmt::format("seat {}: {} of token {} (window index {} of {}) differs", row.seat, what, p, t, row.length)});
    };
    compare("conv", r.conv.row(i), truth.conv, s.channels());
    compare("g", r.g.row(i), truth.g, s.Hv);
    compare("beta", r.beta.row(i), truth.beta, s.Hv);
    if (world_.exact()) return compare("output", r.out.row(i), truth.out, outputs);
    for (int64_t c = 0; c < outputs; c++) {
      const float want = truth.out[p * outputs + c];
      if (!(std::fabs(r.out.row(i)[c] - want) <= truth.slack[p * outputs + c]))
        return report({fmt::format("seat {}: output {} of token {} is {}, want {} +- {}", row.seat, c, p,
                                   r.out.row(i)[c], want, truth.slack[p * outputs + c])});
    }
  }

  // Everything a seat stores is a function of the accepted tokens.
  void check_state(int64_t seat) {
    const Shape& s = world_.shape;
    const Seat& at = seats_[seat];
    const Truth& truth = world_.requests[at.request];
    const auto wrong = [&](const std::string& what) {
      report({fmt::format("seat {} at folded {}, pos {}: {}", seat, at.cursor.folded, at.cursor.pos, what)});
    };
    if (at.cursor.pos != at.tokens) return wrong(fmt::format("{} tokens were accepted", at.tokens));
    if (world_.exact()) {
      const auto stored = truth.checkpoint.find(at.cursor.folded);
      if (stored == truth.checkpoint.end()) return wrong("plain decoding never has a checkpoint here");
      if (!std::ranges::equal(stored->second, layer_.block(kCheckpoint, seat))) return wrong("the checkpoint differs");
    }
    for (int pool = kRecordK; pool < kPools; pool++) {
      const int64_t oldest = pool == kConv ? std::max<int64_t>(0, at.cursor.folded - (s.taps - 1)) : at.cursor.folded;
      const int64_t heads = layer_.heads(Pool(pool));
      for (int64_t p = oldest; p < at.cursor.pos; p++) {
        for (int64_t h = 0; h < heads; h++) {
          const auto stored = layer_.record(Pool(pool), seat, h, p);
          if (std::memcmp(stored.data(), &truth.record[pool][(p * heads + h) * stored.size()], stored.size()) != 0)
            return wrong(fmt::format("{} of position {}, head {} differs", layer_.name(Pool(pool)), p, h));
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
