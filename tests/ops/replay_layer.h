// One layer under test: pools of seats and the calls conv -> gates -> verify, fenced in. Everything a call must not
// read holds poison, and every byte it must not write is compared afterwards.
#pragma once
#include <memory>

#include "ops/pools.h"
#include "ops/replay_shape.h"
#include "ops/table.h"

namespace deltaring::replay {

using Failures = std::vector<std::string>;

// What is under test: a backend and the host rules around it. Mutants replace one of them.
struct Subject {
  OpTable table;
  bool f32_state = false;  // the running state is f32 after each token, so an f32 checkpoint may stand anywhere
  Cursor (*commit)(Cursor, int64_t fold_to, int64_t acc) = deltaring::commit;
  int64_t (*plan_fold)(Cursor, int64_t F, FoldPolicy) = deltaring::plan_fold;
};

// The reference computes in double, which a stored f32 state ends; the others carry f32 from token to token.
inline Subject subject_of(const OpTable& table) {
  return {.table = table, .f32_state = std::string_view(table.name) != "reference"};
}

// One row of a call. Its tokens are those of `request` from index `token` on; the first `genuine` of them are true, the
// rest are drafts that will be rejected. token = cursor.pos unless the subject miscounts.
struct Row {
  int32_t seat = -1;
  const Request* request = nullptr;
  Cursor cursor{};
  int64_t fold_to = 0;
  int64_t token = 0;
  int32_t length = 0, genuine = 0;
  Draft draft = Draft::other;
};

// Outputs of a call, packed as its rows are.
struct Result {
  std::vector<int32_t> start;
  Matrix conv, g, beta, out;
};

// The record pools are empty under Rollback::snapshot, the snapshots under the other. A snapshot is a "head" [Hv V, K].
enum Pool { kCheckpoint, kRecordK, kRecordV, kRecordG, kRecordBeta, kConv, kSnapshots, kPools };

class Layer {
 public:
  Layer(const Subject& subject, const Shape& shape, const Parameters& weights, int64_t T, int64_t R, int64_t seats,
        int threads)
      : shape_(shape),
        weights_(weights),
        T_(T),
        R_(R),
        Rc_(conv_ring_rows({.T = T, .F = shape.F, .R = R, .policy = shape.fold_policy()}, shape.taps)),
        table_(subject.table),
        device_(table_),
        pools_(device_, plan(), seats),
        weight_memory_(upload(device_, weights)),
        stream_(table_.make_stream(threads)) {}

  bool poison_each_call = true;
  std::byte poison = kNaN;

  int64_t R() const { return R_; }
  const Pools& pools() const { return pools_; }

  // An empty seat: a zero state and nothing else.
  void clear(int64_t seat) {
    pools_.fill_seat(seat, poison);
    Pools::fill(pools_.block(kCheckpoint, seat), std::byte{0});
  }

  // conv -> gates -> verify or prefill for packed rows.
  Result run(const std::vector<Row>& rows, bool prefill, Failures& failures) {
    const Shape& s = shape_;
    const RowArrays arrays = arrays_of(rows);
    const int64_t tokens = arrays.tokens(), C = s.channels(), Hv = s.Hv, G = s.G;
    Matrix x(device_, tokens, C, s.tokens), a(device_, tokens, Hv * G, s.gates()), b(device_, tokens, Hv, s.gates());
    Result r{arrays.starts(), Matrix(device_, tokens, C, s.tokens), Matrix(device_, tokens, Hv * G),
             Matrix(device_, tokens, Hv), Matrix(device_, tokens, Hv * s.V, s.out)};
    fill_tokens(rows, r.start, x, a, b);
    const std::vector<std::byte> inputs[] = {x.copy(), a.copy(), b.copy()};
    for (const Matrix* m : {&x, &a, &b, &r.conv, &r.g, &r.beta, &r.out}) m->push();
    isolate(rows, prefill);
    pools_.begin();

    const View<2> weight = dense<2>(weights_on_device(), DType::f32, {C, s.taps});
    table_.conv({arrays.device(), x.view(), weight, pools_.view<3>(kConv, {Rc_, C}), r.conv.view()}, *stream_);
    if (!s.fused) make_gates(a, b, r);
    for (const Matrix* m : {&r.conv, &r.g, &r.beta}) m->pull();
    const auto conv = r.conv.copy(), g = r.g.copy(), beta = r.beta.copy();
    const Matrix &gates = s.fused ? a : r.g, &betas = s.fused ? b : r.beta;
    advance(arrays.device(), r, gates.heads(0, Hv, G), betas.view(), prefill);
    for (const Matrix* m : {&x, &a, &b, &r.conv, &r.g, &r.beta, &r.out}) {
      m->pull();
      if (!m->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    }
    if (!x.equals(inputs[0]) || !a.equals(inputs[1]) || !b.equals(inputs[2]) || !r.conv.equals(conv) ||
        !r.g.equals(g) || !r.beta.equals(beta))
      failures.push_back("an input was written");
    check_seatless_rows(rows, r, failures);
    allow_writes(rows, prefill);
    finish(failures);
    return r;
  }

  void fold(const std::vector<Row>& rows, Failures& failures) {
    const RowArrays arrays = arrays_of(rows);
    Rows view = arrays.device();
    view.start = nullptr;
    isolate(rows, false);
    pools_.begin();
    table_.gdn_fold({.rows = view, .state = state(), .grain = shape_.grain(), .norm = shape_.norm}, *stream_);
    pools_.pull();
    for (const Row& row : rows)
      if (row.seat >= 0 && row.fold_to > row.cursor.folded) pools_.allow(pools_.block(kCheckpoint, row.seat));
    finish(failures);
  }

  // The state behind the last genuine token of each row comes back from its snapshot.
  void commit_snapshots(const std::vector<Row>& rows, Failures& failures) {
    const RowArrays arrays = arrays_of(rows);
    Rows view = arrays.device();
    view.start = nullptr, view.first = nullptr, view.folded = view.fold_to = nullptr;
    hide_absent(rows);
    for (const Row& row : rows) {
      if (row.seat < 0 || !poison_each_call) continue;
      for (int64_t i = 0; i < T_; i++)
        if (i != row.genuine - 1) Pools::fill(pools_.head(kSnapshots, row.seat, i), poison);
      if (row.genuine > 0) Pools::fill(pools_.block(kCheckpoint, row.seat), poison);
    }
    pools_.begin();
    table_.snapshot_commit({.rows = view, .kept = arrays.kept(), .state = checkpoint(), .snapshots = snapshots()},
                           *stream_);
    pools_.pull();
    for (const Row& row : rows)
      if (row.seat >= 0 && row.genuine > 0) pools_.allow(pools_.block(kCheckpoint, row.seat));
    finish(failures);
  }

  void copy_seat(int64_t from, int64_t to) { pools_.copy_seat(from, to); }

 private:
  RowArrays arrays_of(const std::vector<Row>& rows) const {
    RowArrays arrays(device_, rows.size());
    for (const Row& row : rows) arrays.add(row.seat, row.cursor, row.fold_to, row.length, row.genuine);
    arrays.push();
    return arrays;
  }

  std::vector<PoolShape> plan() const {
    const Shape& s = shape_;
    const int64_t replays = s.snapshots() ? 0 : 1;
    return {{"checkpoint", s.checkpoint, s.Hv, s.V, s.K},
            {"record_k", s.record, s.Hk * replays, R_, s.K},
            {"record_v", s.record, s.Hv * replays, R_, s.V},
            {"record_g", DType::f32, s.Hv * replays, R_, s.G},
            {"record_beta", DType::f32, s.Hv * replays, R_, 1},
            {"conv ring", s.tokens, 1, Rc_, s.channels()},
            {"snapshots", s.checkpoint, T_ * (1 - replays), s.Hv * s.V, s.K}};
  }

  View<4> checkpoint() const { return pools_.view<4>(kCheckpoint, {shape_.Hv, shape_.V, shape_.K}); }
  View<5> snapshots() const { return pools_.view<5>(kSnapshots, {T_, shape_.Hv, shape_.V, shape_.K}); }
  GdnState state() const {
    const Shape& s = shape_;
    return {.checkpoint = checkpoint(),
            .record_k = pools_.view<4>(kRecordK, {s.Hk, R_, s.K}),
            .record_v = pools_.view<4>(kRecordV, {s.Hv, R_, s.V}),
            .record_g = pools_.view<4>(kRecordG, {s.Hv, R_, s.G}),
            .record_beta = pools_.view<3>(kRecordBeta, {s.Hv, R_})};
  }

  // weight, A_log and dt_bias, one behind the other.
  static Buffer upload(const Device& device, const Parameters& w) {
    Buffer buffer(device, (w.weight.size() + w.A_log.size() + w.dt_bias.size()) * sizeof(float));
    float* to = reinterpret_cast<float*>(buffer.data());
    for (const std::vector<float>* from : {&w.weight, &w.A_log, &w.dt_bias}) to = std::ranges::copy(*from, to).out;
    buffer.push();
    return buffer;
  }
  float* weights_on_device() const { return reinterpret_cast<float*>(weight_memory_.device()); }

  GateWeights gate_weights() const {
    const float* A_log = weights_on_device() + shape_.channels() * shape_.taps;
    return {.A_log = A_log, .dt_bias = A_log + shape_.Hv};
  }

  void make_gates(const Matrix& a, const Matrix& b, const Result& r) {
    const GateWeights w = gate_weights();
    table_.gdn_gates({.a = a.heads(0, shape_.Hv, shape_.G),
                      .b = b.view(),
                      .A_log = w.A_log,
                      .dt_bias = w.dt_bias,
                      .g = r.g.heads(0, shape_.Hv, shape_.G),
                      .beta = r.beta.view()},
                     *stream_);
  }

  void advance(const Rows& rows, const Result& r, const View<3>& g, const View<2>& beta, bool prefill) {
    const Shape& s = shape_;
    const View<3> q = r.conv.heads(0, s.Hk, s.K), k = r.conv.heads(s.Hk * s.K, s.Hk, s.K),
                  v = r.conv.heads(2 * s.Hk * s.K, s.Hv, s.V), out = r.out.heads(0, s.Hv, s.V);
    const GateWeights gates = s.fused ? gate_weights() : GateWeights{};
    if (s.snapshots()) {
      table_.snapshot_verify({.rows = rows,
                              .q = q,
                              .k = k,
                              .v = v,
                              .g = g,
                              .beta = beta,
                              .gates = gates,
                              .state = checkpoint(),
                              .snapshots = prefill ? View<5>() : snapshots(),
                              .norm = s.norm,
                              .scale = s.scale,
                              .out = out},
                             *stream_);
    } else {
      (prefill ? table_.gdn_prefill : table_.gdn_verify)({.rows = rows,
                                                          .q = q,
                                                          .k = k,
                                                          .v = v,
                                                          .g = g,
                                                          .beta = beta,
                                                          .gates = gates,
                                                          .state = state(),
                                                          .grain = s.grain(),
                                                          .norm = s.norm,
                                                          .scale = s.scale,
                                                          .out = out,
                                                          .bit_exact = true},
                                                         *stream_);
    }
    pools_.pull();
  }

  void fill_tokens(const std::vector<Row>& rows, const std::vector<int32_t>& start, const Matrix& x, const Matrix& a,
                   const Matrix& b) const {
    const int64_t C = shape_.channels(), gates = shape_.Hv * shape_.G, Hv = shape_.Hv;
    std::vector<float> drafted(C + gates + Hv);
    for (size_t r = 0; r < rows.size(); r++) {
      for (int64_t i = 0; i < rows[r].length; i++) {
        const int64_t t = start[r] + i, p = rows[r].token + i;
        const Request* request = rows[r].request;
        if (i >= rows[r].genuine) {
          float *dx = drafted.data(), *da = dx + C, *db = da + gates;
          fill_token(shape_, weights_, request ? request->id : 0, p, rows[r].draft, dx, da, db);
          x.set_row(t, dx), a.set_row(t, da), b.set_row(t, db);
        } else {
          x.set_row(t, &request->x[p * C]), a.set_row(t, &request->a[p * gates]), b.set_row(t, &request->b[p * Hv]);
        }
      }
    }
  }

  void hide_absent(const std::vector<Row>& rows) {
    if (!poison_each_call) return;
    std::vector<bool> present(pools_.seats(), false);
    for (const Row& row : rows)
      if (row.seat >= 0 && row.seat < pools_.seats()) present[row.seat] = true;
    pools_.hide(present, poison);
  }

  // Where the conv ring must still be read: a rewind may go to folded.
  int64_t oldest(int pool, const Cursor& c) const {
    return pool == kConv ? std::max<int64_t>(0, c.folded - (shape_.taps - 1)) : c.folded;
  }

  // Poisons all that the rows must not read: foreign seats, snapshots, and slots of their own that hold no live record.
  void isolate(const std::vector<Row>& rows, bool prefill) {
    if (!poison_each_call) return;
    hide_absent(rows);
    for (const Row& row : rows) {
      if (row.seat < 0 || row.seat >= pools_.seats()) continue;
      if (!prefill) Pools::fill(pools_.block(kSnapshots, row.seat), poison);
      for (int pool = kRecordK; pool <= kConv; pool++) {
        const PoolShape& s = pools_.shape(pool);
        const int64_t from = oldest(pool, row.cursor);
        for (int64_t h = 0; h < s.heads; h++)
          for (int64_t p = std::max(row.cursor.pos, from); p < from + s.slots; p++)
            Pools::fill(pools_.record(pool, row.seat, h, p), poison);
      }
    }
  }

  void allow_writes(const std::vector<Row>& rows, bool prefill) {
    for (const Row& row : rows) {
      if (row.seat < 0) continue;
      if (shape_.snapshots()) {
        if (prefill && row.length > 0) pools_.allow(pools_.block(kCheckpoint, row.seat));
        for (int64_t i = 0; i < row.length && !prefill; i++) pools_.allow(pools_.head(kSnapshots, row.seat, i));
      } else if (row.fold_to > row.cursor.folded) {
        pools_.allow(pools_.block(kCheckpoint, row.seat));
      }
      const int64_t first = row.cursor.pos, end = first + row.length;
      for (int pool = kRecordK; pool <= kConv; pool++) {
        const int64_t from = pool == kConv ? std::max(first, end - Rc_) : first;
        for (int64_t h = 0; h < pools_.shape(pool).heads; h++)
          for (int64_t p = from; p < end; p++) pools_.allow(pools_.record(pool, row.seat, h, p));
      }
    }
  }

  void finish(Failures& failures) {
    const std::string wrong = pools_.end();
    if (!wrong.empty()) failures.push_back(wrong);
    if (poison_each_call) pools_.unhide();
  }

  void check_seatless_rows(const std::vector<Row>& rows, const Result& r, Failures& failures) const {
    for (size_t i = 0; i < rows.size(); i++) {
      for (int32_t t = r.start[i]; t < r.start[i + 1] && rows[i].seat < 0; t++) {
        const auto zeros = [t](const Matrix& m) {
          return std::ranges::all_of(m.values(t), [](float f) { return f == 0; });
        };
        if (!zeros(r.conv) || !zeros(r.out))
          failures.push_back(fmt::format("row {} has no seat, but its outputs are not zeros", i));
      }
    }
  }

  const Shape& shape_;
  const Parameters& weights_;
  int64_t T_, R_, Rc_;
  OpTable table_;
  Device device_;
  Pools pools_;
  Buffer weight_memory_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace deltaring::replay
