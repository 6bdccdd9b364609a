// conv.
#include <optional>

#include "op_test/inputs.h"

namespace deltaring::op_test {

namespace {

using replay::Buffer, replay::Matrix;

class ConvJob final : public Job {
 public:
  ConvJob(const Case& c, const Machine& machine, uint64_t seed)
      : c_(c),
        machine_(machine),
        rows_(plan_rows(c)),
        arrays_(machine.device, rows_.size()),
        C_(c.shape.channels()),
        Rc_(std::max<int64_t>(c.shape.taps - 1 + std::min<int64_t>(c.T, 16), 16)),
        weight_(noise(seed, 1, C_ * c.shape.taps, 1)),
        weight_memory_(upload(machine.device, weight_)),
        pools_(machine.device, {{"conv ring", c.shape.record, 1, Rc_, C_}}, seats_of(c)),
        seed_(seed) {
    for (const PlannedRow& row : rows_) arrays_.add(row.seat, {.folded = 0, .pos = row.before}, 0, row.length, 0);
    x_.emplace(machine.device, arrays_.tokens(), C_, c.shape.tokens);
    out_.emplace(machine.device, arrays_.tokens(), C_, c.shape.out);
    for (size_t b = 0; b < rows_.size(); b++) {
      for (int32_t i = 0; i < rows_[b].length; i++)
        x_->set_row(arrays_.rows().start[b] + i, inputs(b, rows_[b].before + i).data());
      for (int64_t p = oldest(b); p < rows_[b].before && rows_[b].seat >= 0; p++)
        store_floats(ring_row(b, p).data(), c.shape.record, 0, C_, inputs(b, p).data());
    }
    x_->push(), out_->push(), arrays_.push();
    pools_.begin();
    copy_ = x_->copy();
  }

  void call() override {
    machine_.table.conv({.rows = arrays_.device(),
                         .x = x_->view(),
                         .weight = dense<2>(floats(weight_memory_), DType::f32, {C_, c_.shape.taps}),
                         .ring = pools_.view<3>(0, {Rc_, C_}),
                         .out = out_->view()},
                        machine_.stream);
  }

  void judge(Failures& failures) override {
    pools_.pull(), x_->pull(), out_->pull();
    if (!x_->equals(copy_)) failures.push_back("an input was written");
    if (!x_->gaps_intact() || !out_->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    for (size_t b = 0; b < rows_.size(); b++) judge_row(b, failures);
    const std::string foreign = pools_.end();
    if (!foreign.empty()) failures.push_back(foreign);
  }

  int64_t bytes() const override {
    const auto size = [](DType t) { return static_cast<int64_t>(size_of(t)); };
    int64_t ring = 0;
    for (const PlannedRow& row : rows_)
      if (row.seat >= 0 && row.length > 0)
        ring += std::min<int64_t>(row.before, c_.shape.taps - 1) + std::min<int64_t>(row.length, Rc_);
    const int64_t tokens = arrays_.tokens() * (size(c_.shape.tokens) + size(c_.shape.out));
    return C_ * (tokens + ring * size(c_.shape.record) + c_.shape.taps * size(DType::f32));
  }

 private:
  float input(size_t b, int64_t p, int64_t channel) const {
    constexpr float kSize[] = {1, 0, 1e3f, 1e-4f, 30};
    const float x = replay::uniform(seed_, 2 + 1000 * b, p, channel);
    return round_to(c_.shape.tokens, c_.corners ? x * kSize[(p / 5 + channel) % 5] : 2 * x);
  }
  std::vector<float> inputs(size_t b, int64_t p) const {
    std::vector<float> x(C_);
    for (int64_t channel = 0; channel < C_; channel++) x[channel] = input(b, p, channel);
    return x;
  }
  int64_t oldest(size_t b) const { return std::max<int64_t>(0, rows_[b].before - (c_.shape.taps - 1)); }
  std::span<std::byte> ring_row(size_t b, int64_t p) const { return pools_.record(0, rows_[b].seat, 0, p); }

  void judge_row(size_t b, Failures& failures) {
    const auto [seat, before, length] = rows_[b];
    const int64_t taps = c_.shape.taps;
    for (int32_t i = 0; i < length; i++) {
      const int64_t t = arrays_.rows().start[b] + i, p = before + i;
      for (int64_t ch = 0; ch < C_; ch++) {
        replay::Expected want{0, 0};
        if (seat >= 0)
          want = replay::expected_conv(&weight_[ch * taps], taps, [&, pos = p](int64_t j) {
            const int64_t from = pos - (taps - 1) + j;
            return from < 0 ? 0.0f : input(b, from, ch);
          });
        if (seat >= 0) want = replay::stored_as(c_.shape.out, want);
        if (replay::near(out_->at(t, ch), want)) continue;
        failures.push_back(fmt::format("row {}: channel {} of token {} is {}, oracle {} +- {}", b, ch, i,
                                       out_->at(t, ch), want.value, want.tolerance));
        break;
      }
      if (seat < 0 || i < length - Rc_) continue;
      const auto stored = ring_row(b, p);
      pools_.allow(stored);
      std::vector<float> held(C_);
      load_floats(stored.data(), c_.shape.record, 0, C_, held.data());
      if (held != x_->values(t))
        failures.push_back(fmt::format("row {}: the ring does not hold the input of position {}", b, p));
    }
  }

  const Case c_;
  const Machine machine_;
  std::vector<PlannedRow> rows_;
  replay::RowArrays arrays_;
  int64_t C_, Rc_;
  std::vector<float> weight_;  // [C, taps]
  Buffer weight_memory_;
  replay::Pools pools_;
  uint64_t seed_;
  std::optional<Matrix> x_, out_;
  std::vector<std::byte> copy_;
};

}  // namespace

std::unique_ptr<Job> make_conv_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<ConvJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
