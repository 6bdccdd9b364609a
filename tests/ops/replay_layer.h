// One layer under test: pools of seats and the calls conv -> gates -> verify, fenced in. Everything a call must not
// read holds poison, and every byte it must not write is compared afterwards.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "ops/replay_oracle.h"
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

// NaN in every element type, and the largest finite values.
inline constexpr std::byte kNaN{0xff}, kHuge{0x7f};

// Bytes between fences, all poison at first.
class Buffer {
 public:
  explicit Buffer(size_t bytes, std::byte poison = kNaN)
      : poison_(poison), storage_(new (std::align_val_t{64}) std::byte[bytes + 2 * kFence]), size_(bytes) {
    std::fill_n(storage_.get(), size_ + 2 * kFence, poison_);
  }
  std::byte* data() const { return storage_.get() + kFence; }
  std::span<std::byte> bytes() const { return {data(), size_}; }
  bool fences_intact() const {
    const auto is_poison = [this](std::byte b) { return b == poison_; };
    return std::all_of(storage_.get(), data(), is_poison) &&
           std::all_of(data() + size_, data() + size_ + kFence, is_poison);
  }

 private:
  static constexpr size_t kFence = 256;
  struct Free {
    void operator()(std::byte* p) const { operator delete[](p, std::align_val_t{64}); }
  };
  std::byte poison_;
  std::unique_ptr<std::byte[], Free> storage_;
  size_t size_;
};

// Token rows with a poisoned gap behind each: [rows, columns] f32.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), buffer_(rows * (columns + kGap) * 4) {}
  float* row(int64_t i) const { return reinterpret_cast<float*>(buffer_.data()) + i * (columns_ + kGap); }
  View<2> view() const { return {row(0), DType::f32, {rows_, columns_}, {columns_ + kGap, 1}}; }
  // Columns [first, first + heads * width) as [rows, heads, width].
  View<3> heads(int64_t first, int64_t heads, int64_t width) const {
    return {row(0) + first, DType::f32, {rows_, heads, width}, {columns_ + kGap, width, 1}};
  }
  std::vector<std::byte> copy() const { return {buffer_.bytes().begin(), buffer_.bytes().end()}; }
  bool equals(const std::vector<std::byte>& bytes) const {
    return bytes.empty() || std::memcmp(buffer_.data(), bytes.data(), bytes.size()) == 0;
  }
  bool gaps_intact() const {
    bool intact = buffer_.fences_intact();
    for (int64_t i = 0; i < rows_; i++) {
      const auto* gap = reinterpret_cast<const std::byte*>(row(i) + columns_);
      intact = intact && std::all_of(gap, gap + kGap * 4, [](std::byte b) { return b == kNaN; });
    }
    return intact;
  }

 private:
  static constexpr int64_t kGap = 5;
  int64_t rows_, columns_;
  Buffer buffer_;
};

// One row of a call. Its tokens are those of `request` from index `token` on; the first `genuine` of them are true, the
// rest are drafts that will be rejected. token = cursor.pos unless the subject miscounts.
struct Row {
  int32_t seat = -1;
  int64_t request = 0;
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

// A per-seat tensor of the pools: [heads, slots, width].
struct Tensor {
  const char* name;
  DType dtype;
  int64_t heads, slots, width;
  size_t offset, seat_stride;  // bytes; a seat's block is dense and a poisoned gap follows it

  int64_t elements() const { return heads * slots * width; }
  size_t bytes() const { return elements() * size_of(dtype); }
};

enum Pool { kCheckpoint, kRecordK, kRecordV, kRecordG, kRecordBeta, kConv, kPools };

class Layer {
 public:
  Layer(const Subject& subject, const Shape& shape, int64_t T, int64_t R, int64_t seats, int threads)
      : shape_(shape),
        R_(R),
        Rc_(conv_ring_rows({.T = T, .F = shape.F, .R = R, .policy = shape.policy}, shape.taps)),
        seats_(seats),
        table_(subject.table),
        weights_(shape),
        tensors_(plan(shape, R, Rc_, seats)),
        memory_(tensors_.back().offset + seats * tensors_.back().seat_stride),
        stream_(table_.make_stream(threads)) {}

  bool poison_each_call = true;
  std::byte poison = kNaN;

  int64_t R() const { return R_; }
  int64_t Rc() const { return Rc_; }
  int64_t seats() const { return seats_; }
  const Shape& shape() const { return shape_; }
  const Parameters& weights() const { return weights_; }

  std::span<std::byte> block(Pool pool, int64_t seat) const {
    const Tensor& t = tensors_[pool];
    return memory_.bytes().subspan(t.offset + seat * t.seat_stride, t.bytes());
  }
  std::span<std::byte> record(Pool pool, int64_t seat, int64_t head, int64_t position) const {
    const Tensor& t = tensors_[pool];
    const size_t row = t.width * size_of(t.dtype), slot = head * t.slots + position % t.slots;
    return block(pool, seat).subspan(slot * row, row);
  }
  std::vector<std::byte> snapshot() const { return {memory_.bytes().begin(), memory_.bytes().end()}; }
  int64_t heads(Pool pool) const { return tensors_[pool].heads; }
  const char* name(Pool pool) const { return tensors_[pool].name; }

  // An empty seat: a zero state and nothing else.
  void clear(int64_t seat) {
    fill_seat(seat, poison);
    std::ranges::fill(block(kCheckpoint, seat), std::byte{0});
  }
  void copy_seat(int64_t from, int64_t to) {
    for (int pool = 0; pool < kPools; pool++) std::ranges::copy(block(Pool(pool), from), block(Pool(pool), to).begin());
  }

  // conv -> gates -> verify or prefill for packed rows.
  Result run(const std::vector<Row>& rows, bool prefill, Failures& failures) {
    RowArrays arrays(rows);
    const int64_t tokens = arrays.start.back(), C = shape_.channels(), Hv = shape_.Hv;
    Matrix x(tokens, C), a(tokens, Hv), b(tokens, Hv);
    Result r{arrays.start, Matrix(tokens, C), Matrix(tokens, Hv), Matrix(tokens, Hv), Matrix(tokens, Hv * shape_.V)};
    fill_tokens(rows, arrays, x, a, b);
    const auto saved = isolate(rows);
    auto before = snapshot();
    const std::vector<std::byte> inputs[] = {x.copy(), a.copy(), b.copy()};

    const View<2> weight = dense<2>(weights_.weight.data(), DType::f32, {C, shape_.taps});
    table_.conv({arrays.rows(), x.view(), weight, conv_ring(), r.conv.view()}, *stream_);
    table_.gdn_gates({a.view(), b.view(), weights_.A_log.data(), weights_.dt_bias.data(), r.g.view(), r.beta.view()},
                     *stream_);
    const auto conv = r.conv.copy(), g = r.g.copy(), beta = r.beta.copy();
    const int64_t key_columns = shape_.Hk * shape_.K;
    const GdnVerifyArgs args{.rows = arrays.rows(),
                             .q = r.conv.heads(0, shape_.Hk, shape_.K),
                             .k = r.conv.heads(key_columns, shape_.Hk, shape_.K),
                             .v = r.conv.heads(2 * key_columns, Hv, shape_.V),
                             .g = r.g.view(),
                             .beta = r.beta.view(),
                             .state = state(),
                             .grain = shape_.grain(),
                             .out = r.out.heads(0, Hv, shape_.V)};
    (prefill ? table_.gdn_prefill : table_.gdn_verify)(args, *stream_);

    for (const Matrix* m : {&x, &a, &b, &r.conv, &r.g, &r.beta, &r.out})
      if (!m->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    if (!x.equals(inputs[0]) || !a.equals(inputs[1]) || !b.equals(inputs[2]) || !r.conv.equals(conv) ||
        !r.g.equals(g) || !r.beta.equals(beta))
      failures.push_back("an input was written");
    check_seatless_rows(rows, r, failures);
    check_untouched(rows, before, true, failures);
    restore(rows, saved);
    return r;
  }

  void fold(const std::vector<Row>& rows, Failures& failures) {
    RowArrays arrays(rows);
    const auto saved = isolate(rows);
    auto before = snapshot();
    Rows view = arrays.rows();
    view.start = nullptr;
    table_.gdn_fold({view, state(), shape_.grain()}, *stream_);
    check_untouched(rows, before, false, failures);
    restore(rows, saved);
  }

 private:
  // Exact-size arrays behind a Rows. A row without a seat has cursors that nobody may use.
  struct RowArrays {
    std::vector<int32_t> start{0}, seat;
    std::vector<int64_t> first, folded, fold_to;

    explicit RowArrays(const std::vector<Row>& rows) {
      for (const Row& row : rows) {
        start.push_back(start.back() + row.length), seat.push_back(row.seat);
        first.push_back(row.seat < 0 ? -77 : row.cursor.pos);
        folded.push_back(row.seat < 0 ? int64_t{1} << 60 : row.cursor.folded);
        fold_to.push_back(row.seat < 0 ? -12345 : row.fold_to);
      }
    }
    Rows rows() const {
      return {.count = static_cast<int32_t>(seat.size()),
              .start = start.data(),
              .seat = seat.data(),
              .first = first.data(),
              .folded = folded.data(),
              .fold_to = fold_to.data()};
    }
  };

  static std::vector<Tensor> plan(const Shape& s, int64_t R, int64_t Rc, int64_t seats) {
    std::vector<Tensor> tensors = {
        {"checkpoint", s.checkpoint, s.Hv, s.V, s.K, 0, 0}, {"record_k", s.record, s.Hk, R, s.K, 0, 0},
        {"record_v", s.record, s.Hv, R, s.V, 0, 0},         {"record_g", DType::f32, s.Hv, R, 1, 0, 0},
        {"record_beta", DType::f32, s.Hv, R, 1, 0, 0},      {"conv ring", DType::f32, 1, Rc, s.channels(), 0, 0}};
    size_t offset = 0;
    for (Tensor& t : tensors) {
      t.offset = offset, t.seat_stride = (t.bytes() + 127) / 64 * 64;
      offset += seats * t.seat_stride;
    }
    return tensors;
  }

  template <int N>
  View<N> view(Pool pool, std::array<int64_t, N> shape) const {
    const Tensor& t = tensors_[pool];
    View<N> v = dense<N>(memory_.data() + t.offset, t.dtype, shape);
    v.stride[0] = t.seat_stride / size_of(t.dtype);
    return v;
  }
  GdnState state() const {
    const auto& s = shape_;
    return {view<4>(kCheckpoint, {seats_, s.Hv, s.V, s.K}), view<4>(kRecordK, {seats_, s.Hk, R_, s.K}),
            view<4>(kRecordV, {seats_, s.Hv, R_, s.V}), view<3>(kRecordG, {seats_, s.Hv, R_}),
            view<3>(kRecordBeta, {seats_, s.Hv, R_})};
  }
  View<3> conv_ring() const { return view<3>(kConv, {seats_, Rc_, shape_.channels()}); }

  void fill_tokens(const std::vector<Row>& rows, const RowArrays& arrays, Matrix& x, Matrix& a, Matrix& b) const {
    for (size_t r = 0; r < rows.size(); r++) {
      for (int64_t i = 0; i < rows[r].length; i++) {
        const int64_t t = arrays.start[r] + i;
        const Draft draft = i < rows[r].genuine ? Draft::truth : rows[r].draft;
        fill_token(shape_, rows[r].request, rows[r].token + i, draft, x.row(t), a.row(t), b.row(t));
      }
    }
  }

  void fill_seat(int64_t seat, std::byte value) {
    for (int pool = 0; pool < kPools; pool++) std::ranges::fill(block(Pool(pool), seat), value);
  }

  // Poisons all that the rows must not read: foreign seats, and slots of their own that hold no live record. A conv
  // ring keeps taps-1 rows before folded, since a rewind may go there. Returns the memory as it was.
  std::vector<std::byte> isolate(const std::vector<Row>& rows) {
    auto saved = snapshot();
    if (!poison_each_call) return saved;
    std::vector<bool> present(seats_, false);
    for (const Row& row : rows) {
      if (row.seat < 0) continue;
      present[row.seat] = true;
      for (int pool = kRecordK; pool < kPools; pool++) {
        const int64_t slots = tensors_[pool].slots;
        const int64_t oldest =
            pool == kConv ? std::max<int64_t>(0, row.cursor.folded - (shape_.taps - 1)) : row.cursor.folded;
        for (int64_t p = std::max(row.cursor.pos, oldest); p < oldest + slots; p++)
          for (int64_t h = 0; h < tensors_[pool].heads; h++)
            std::ranges::fill(record(Pool(pool), row.seat, h, p), poison);
      }
    }
    for (int64_t seat = 0; seat < seats_; seat++)
      if (!present[seat]) fill_seat(seat, poison);
    return saved;
  }

  void restore(const std::vector<Row>& rows, const std::vector<std::byte>& saved) {
    std::vector<bool> present(seats_, false);
    for (const Row& row : rows)
      if (row.seat >= 0) present[row.seat] = true;
    for (int64_t seat = 0; seat < seats_; seat++) {
      for (int pool = 0; pool < kPools && !present[seat]; pool++) {
        const auto to = block(Pool(pool), seat);
        std::memcpy(to.data(), saved.data() + (to.data() - memory_.data()), to.size());
      }
    }
  }

  // The bytes a call may write are taken over into `before`; then both must be equal.
  void check_untouched(const std::vector<Row>& rows, std::vector<std::byte>& before, bool appends, Failures& failures) {
    const auto allow = [&](std::span<std::byte> region) {
      std::memcpy(before.data() + (region.data() - memory_.data()), region.data(), region.size());
    };
    for (const Row& row : rows) {
      if (row.seat < 0) continue;
      if (row.fold_to > row.cursor.folded) allow(block(kCheckpoint, row.seat));
      const int64_t first = row.cursor.pos, end = first + row.length;
      for (int pool = kRecordK; pool < kPools && appends; pool++) {
        const int64_t from = pool == kConv ? std::max(first, end - Rc_) : std::max(first, row.fold_to);
        for (int64_t p = from; p < end; p++)
          for (int64_t h = 0; h < tensors_[pool].heads; h++) allow(record(Pool(pool), row.seat, h, p));
      }
    }
    if (!memory_.fences_intact()) failures.push_back("the pools were written out of bounds");
    if (std::memcmp(memory_.data(), before.data(), before.size()) == 0) return;
    const auto at = std::mismatch(before.begin(), before.end(), memory_.data()).first - before.begin();
    size_t pool = kPools - 1;
    while (static_cast<size_t>(at) < tensors_[pool].offset) pool--;
    failures.push_back(fmt::format("{} of seat {} was written at byte {} where nothing may be", tensors_[pool].name,
                                   (at - tensors_[pool].offset) / tensors_[pool].seat_stride,
                                   (at - tensors_[pool].offset) % tensors_[pool].seat_stride));
  }

  void check_seatless_rows(const std::vector<Row>& rows, const Result& r, Failures& failures) const {
    for (size_t i = 0; i < rows.size(); i++) {
      for (int32_t t = r.start[i]; t < r.start[i + 1] && rows[i].seat < 0; t++) {
        bool zero = true;
        for (int64_t c = 0; c < shape_.channels(); c++) zero = zero && r.conv.row(t)[c] == 0;
        for (int64_t c = 0; c < shape_.Hv * shape_.V; c++) zero = zero && r.out.row(t)[c] == 0;
        if (!zero) failures.push_back(fmt::format("row {} has no seat, but its outputs are not zeros", i));
      }
    }
  }

  Shape shape_;
  int64_t R_, Rc_, seats_;
  OpTable table_;
  Parameters weights_;
  std::vector<Tensor> tensors_;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace deltaring::replay
