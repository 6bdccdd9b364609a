// gdn_verify, gdn_prefill and gdn_fold.
#include <bit>

#include "op_test/inputs.h"

namespace deltaring::op_test {

namespace {

using replay::kCheckpoint, replay::kRecordK, replay::kRecordV, replay::kRecordG, replay::kRecordBeta;
using replay::Pools, replay::PoolShape;

class GdnJob final : public Job {
 public:
  GdnJob(const Case& c, const Machine& machine, uint64_t seed)
      : c_(c),
        shape_(c_.shape),
        machine_(machine),
        rows_(plan_rows(c)),
        arrays_(machine.device, rows_.size()),
        R_(ring_rows()),
        pools_(machine.device, pool_shapes(), seats_of(c)),
        tokens_(machine.device, c.shape, fold_only() ? 0 : token_count()),
        history_(machine.device, with_gates(c.shape), c.B * c.n) {
    for (size_t b = 0; b < rows_.size(); b++) add_row(static_cast<int64_t>(b), seed);
    tokens_.push(), arrays_.push();
    pools_.begin();
  }

  void call() override {
    Rows rows = arrays_.device();
    if (fold_only()) {
      rows.start = nullptr;
      return machine_.table.gdn_fold({.rows = rows, .state = state(), .grain = shape_.grain(), .norm = shape_.norm},
                                     machine_.stream);
    }
    const auto op = c_.is("gdn_prefill") ? machine_.table.gdn_prefill : machine_.table.gdn_verify;
    op({.rows = rows,
        .q = tokens_.q(),
        .k = tokens_.k(),
        .v = tokens_.v(),
        .g = tokens_.g(),
        .beta = tokens_.beta(),
        .gates = tokens_.gates(),
        .state = state(),
        .grain = shape_.grain(),
        .norm = shape_.norm,
        .scale = shape_.scale,
        .out = tokens_.out(),
        .bit_exact = true},
       machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull();
    tokens_.pull_and_check(failures);
    for (size_t b = 0; b < rows_.size(); b++) judge_row(static_cast<int64_t>(b), failures);
    const std::string foreign = pools_.end();
    if (!foreign.empty()) failures.push_back(foreign);
  }
  RelativeError out_error() const override { return tokens_.error(); }
  RelativeError state_error() const override { return state_error_; }

  int64_t bytes() const override {
    const auto state = static_cast<int64_t>(pools_.shape(kCheckpoint).bytes());
    int64_t record = 0, total = tokens_.bytes();
    for (int pool = kRecordK; pool <= kRecordBeta; pool++)
      record += pools_.shape(pool).heads * static_cast<int64_t>(pools_.shape(pool).row_bytes());
    for (size_t b = 0; b < rows_.size(); b++) {
      if (rows_[b].seat < 0) continue;
      const Cursor at = cursors_[b];
      const int64_t end = at.pos + arrays_.rows().length(static_cast<int32_t>(b));
      const bool stores = fold_to_[b] > at.folded;
      if (fold_only()) {
        total += stores ? 2 * state + record * (fold_to_[b] - at.folded) : 0;
      } else {
        total += state * (1 + stores) + record * (rows_[b].before + end - std::max(at.pos, fold_to_[b]));
      }
    }
    return total;
  }

 private:
  // Records hold gates as they are used.
  static Shape with_gates(Shape s) { return s.fused = false, s.tokens = DType::f32, s; }

  bool fold_only() const { return c_.is("gdn_fold"); }

  int64_t token_count() const {
    int64_t count = 0;
    for (const PlannedRow& row : rows_) count += row.length;
    return count;
  }

  // A prefill that folds leaves less than a grain; everything else keeps records and window together.
  int64_t ring_rows() const {
    const bool short_tail = c_.is("gdn_prefill") && c_.fold;
    const int64_t T = short_tail ? 1 : std::max<int64_t>(c_.T, 1);
    const auto together = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(c_.n + (short_tail ? 0 : c_.T))));
    return std::max(default_ring_rows(T, shape_.F, shape_.policy), together);
  }

  std::vector<PoolShape> pool_shapes() const {
    const Shape& s = shape_;
    return {{"checkpoint", s.checkpoint, s.Hv, s.V, s.K},
            {"record_k", s.record, s.Hk, R_, s.K},
            {"record_v", s.record, s.Hv, R_, s.V},
            {"record_g", DType::f32, s.Hv, R_, s.G},
            {"record_beta", DType::f32, s.Hv, R_, 1}};
  }

  GdnState state() const {
    const Shape& s = shape_;
    return {.checkpoint = pools_.view<4>(kCheckpoint, {s.Hv, s.V, s.K}),
            .record_k = pools_.view<4>(kRecordK, {s.Hk, R_, s.K}),
            .record_v = pools_.view<4>(kRecordV, {s.Hv, R_, s.V}),
            .record_g = pools_.view<4>(kRecordG, {s.Hv, R_, s.G}),
            .record_beta = pools_.view<3>(kRecordBeta, {s.Hv, R_})};
  }

  // Live bytes of a row: its checkpoint, its records, its window. Everything else stays poison.
  void add_row(int64_t b, uint64_t seed) {
    const PlannedRow& row = rows_[b];
    const int64_t folded = shape_.F * (3 + b), pos = folded + row.before;
    const bool inside = c_.is("gdn_prefill");
    const Cursor at{.folded = folded, .pos = pos}, reach{.folded = folded, .pos = inside ? pos + row.length : pos};
    const int64_t planned = plan_fold(reach, shape_.F, shape_.policy);
    cursors_.push_back(at), fold_to_.push_back(c_.fold ? std::max(planned - c_.kept, folded) : folded);
    const int32_t first = arrays_.rows().tokens(), length = fold_only() ? 0 : row.length;
    arrays_.add(row.seat, at, fold_to_.back(), length, 0);
    for (int32_t i = 0; i < length; i++) tokens_.fill(c_, seed, first + i, b, pos + i);
    if (row.seat < 0) return;
    fill_state(pools_.block(kCheckpoint, row.seat), shape_.checkpoint, seed, b);
    const auto start = pools_.block(kCheckpoint, row.seat);
    initial_.resize(rows_.size()), initial_[b].assign(start.begin(), start.end());
    for (int64_t i = 0; i < row.before; i++) {
      history_.fill(c_, seed, b * c_.n + i, b, folded + i);
      each_record(history_.inputs(b * c_.n + i), row.seat, folded + i, [](auto stored, DType t, const float* x) {
        store_floats(stored.data(), t, 0, static_cast<int64_t>(stored.size() / size_of(t)), x);
      });
    }
  }

  // visit(stored bytes, dtype, values) for each part of the record of a position.
  template <class Visit>
  void each_record(const replay::TokenInputs& x, int32_t seat, int64_t p, const Visit& visit) const {
    const float* values[] = {x.k, x.v, x.g, x.beta};
    for (int pool = kRecordK; pool <= kRecordBeta; pool++) {
      const PoolShape& s = pools_.shape(pool);
      for (int64_t h = 0; h < s.heads; h++)
        visit(pools_.record(pool, seat, h, p), s.dtype, values[pool - kRecordK] + h * s.width);
    }
  }

  void judge_row(int64_t b, Failures& failures) {
    const PlannedRow& row = rows_[b];
    const int64_t first_token = arrays_.rows().start[b], length = arrays_.rows().length(static_cast<int32_t>(b));
    if (row.seat < 0) {
      for (int64_t i = 0; i < length; i++) tokens_.check_out(first_token + i, b, nullptr, failures);
      return;
    }
    const auto [folded, pos] = cursors_[b];
    const int64_t fold_to = fold_to_[b], end = fold_only() ? fold_to : pos + length;
    const auto stored = pools_.block(kCheckpoint, row.seat);
    if (fold_to > folded) pools_.allow(stored);
    replay::DeltaRule oracle(shape_);
    oracle.load(initial_[b].data());
    std::vector<replay::Expected> want(shape_.Hv * shape_.V);
    for (int64_t p = folded;; p++) {
      if (p == fold_to && p > folded) {
        for (int64_t i = 0; shape_.checkpoint == DType::f32 && i < shape_.Hv * shape_.V * shape_.K; i++)
          state_error_.add(load_as_float(stored.data(), DType::f32, i), oracle.state(i));
        if (!oracle.compare(stored.data()))
          failures.push_back(fmt::format("row {}: the checkpoint at {} is not the oracle's", b, p));
      } else if (shape_.grain() && p > folded && p % shape_.grain() == 0) {
        oracle.round();
      }
      if (p == end) break;
      const int64_t t = first_token + p - pos;
      replay::TokenInputs x = p < pos ? history_.inputs(b * c_.n + p - folded) : tokens_.inputs(t);
      if (p < pos) x.q = nullptr;
      oracle.step(x, p < pos ? nullptr : want.data());
      if (p < pos) continue;
      tokens_.check_out(t, b, want.data(), failures);
      if (p >= fold_to) {
        judge_record(t, b, p, failures);
      } else {
        each_record(tokens_.inputs(t), row.seat, p, [&](auto slot, DType, const float*) { pools_.allow(slot); });
      }
    }
  }

  // The record of a window token: what was given, rounded to the record dtype; gates made from raw ones near those.
  void judge_record(int64_t t, int64_t b, int64_t p, Failures& failures) {
    bool equal = true;
    std::vector<float> gates;  // g [Hv, G], beta [Hv]
    each_record(tokens_.inputs(t), rows_[b].seat, p, [&](auto stored, DType type, const float* values) {
      const auto count = static_cast<int64_t>(stored.size() / size_of(type));
      std::vector<std::byte> want(stored.size());
      store_floats(want.data(), type, 0, count, values);
      pools_.allow(stored);
      const bool raw = shape_.fused && values >= tokens_.inputs(t).g;
      if (raw)
        gates.resize(gates.size() + count), load_floats(stored.data(), type, 0, count, &gates.back() + 1 - count);
      equal = equal && (raw || std::ranges::equal(want, stored));
    });
    if (shape_.fused) equal = equal && tokens_.near_gates(t, gates.data(), gates.data() + shape_.Hv * shape_.G);
    if (!equal) failures.push_back(fmt::format("row {}: the record of position {} is not what was given", b, p));
  }

  const Case c_;
  const Shape& shape_;
  const Machine machine_;
  std::vector<PlannedRow> rows_;
  replay::RowArrays arrays_;
  std::vector<Cursor> cursors_;
  std::vector<int64_t> fold_to_;
  int64_t R_;
  Pools pools_;
  Tokens tokens_, history_;
  RelativeError state_error_;
  std::vector<std::vector<std::byte>> initial_;
};

}  // namespace

std::unique_ptr<Job> make_gdn_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<GdnJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
