// conv.
#include <bit>
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
        arrays_(rows_.size()),
        C_(c.shape.channels()),
        Rc_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(c.shape.taps - 1 + std::min<int64_t>(c.T, 16), 16)))),
        weight_(noise(seed, 1, C_ * c.shape.taps, 1)),
        weight_memory_(upload(machine.device, weight_)),
        pools_(machine.device, {{"conv ring", DType::f32, 1, Rc_, C_}}, seats_of(c)),
        seed_(seed) {
    for (const PlannedRow& row : rows_) arrays_.add(row.seat, {.folded = 0, .pos = row.before}, 0, row.length, 0);
    x_.emplace(machine.device, arrays_.tokens(), C_), out_.emplace(machine.device, arrays_.tokens(), C_);
    for (size_t b = 0; b < rows_.size(); b++) {
      for (int32_t i = 0; i < rows_[b].length; i++)
        for (int64_t ch = 0; ch < C_; ch++) x_->row(arrays_.start()[b] + i)[ch] = input(b, rows_[b].before + i, ch);
      for (int64_t p = oldest(b); p < rows_[b].before && rows_[b].seat >= 0; p++)
        for (int64_t ch = 0; ch < C_; ch++) ring_row(b, p)[ch] = input(b, p, ch);
    }
    x_->push(), out_->push();
    pools_.begin();
    copy_ = x_->copy();
  }

  void call() override {
    machine_.table.conv({.rows = arrays_.rows(),
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
    int64_t rows = 2 * arrays_.tokens() + c_.shape.taps;
    for (const PlannedRow& row : rows_)
      if (row.seat >= 0 && row.length > 0)
        rows += std::min<int64_t>(row.before, c_.shape.taps - 1) + std::min<int64_t>(row.length, Rc_);
    return rows * C_ * static_cast<int64_t>(sizeof(float));
  }

 private:
  float input(size_t b, int64_t p, int64_t channel) const {
    constexpr float kSize[] = {1, 0, 1e3f, 1e-4f, 30};
    const float x = replay::uniform(seed_, 2 + 1000 * b, p, channel);
    return c_.corners ? x * kSize[(p / 5 + channel) % 5] : 2 * x;
  }
  int64_t oldest(size_t b) const { return std::max<int64_t>(0, rows_[b].before - (c_.shape.taps - 1)); }
  float* ring_row(size_t b, int64_t p) const {
    return reinterpret_cast<float*>(pools_.record(0, rows_[b].seat, 0, p).data());
  }

  void judge_row(size_t b, Failures& failures) {
    const auto [seat, before, length] = rows_[b];
    const int64_t taps = c_.shape.taps;
    for (int32_t i = 0; i < length; i++) {
      const int64_t t = arrays_.start()[b] + i, p = before + i;
      for (int64_t ch = 0; ch < C_; ch++) {
        replay::Expected want{0, 0};
        if (seat >= 0)
          want = replay::expected_conv(&weight_[ch * taps], taps, [&, pos = p](int64_t j) {
            const int64_t from = pos - (taps - 1) + j;
            return from < 0 ? 0.0f : input(b, from, ch);
          });
        if (replay::near(out_->row(t)[ch], want)) continue;
        failures.push_back(fmt::format("row {}: channel {} of token {} is {}, oracle {} +- {}", b, ch, i,
                                       out_->row(t)[ch], want.value, want.tolerance));
        break;
      }
      if (seat < 0 || i < length - Rc_) continue;
      pools_.allow(pools_.record(0, seat, 0, p));
      if (std::memcmp(ring_row(b, p), x_->row(t), C_ * sizeof(float)) != 0)
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
