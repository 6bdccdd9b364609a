// gdn_gates.
#include "op_test/inputs.h"

namespace deltaring::op_test {

namespace {

using replay::Buffer, replay::Matrix;

class GatesJob final : public Job {
 public:
  GatesJob(const Case& c, const Machine& machine, uint64_t seed)
      : c_(c),
        machine_(machine),
        channels_(c.shape.Hv * c.shape.G),
        A_log_(noise(seed, 1, c.shape.Hv, 3)),
        dt_bias_(noise(seed, 2, channels_, 2)),
        A_log_memory_(upload(machine.device, A_log_)),
        dt_bias_memory_(upload(machine.device, dt_bias_)),
        a_(machine.device, c.B * c.T, channels_),
        b_(machine.device, c.B * c.T, c.shape.Hv),
        g_(machine.device, c.B * c.T, channels_),
        beta_(machine.device, c.B * c.T, c.shape.Hv) {
    constexpr float kRaw[] = {-200, -88, -20, 0, 8, 19.9f, 20.1f, 300};
    for (int64_t t = 0; t < a_.rows(); t++) {
      for (int64_t i = 0; i < channels_; i++)
        a_.row(t)[i] = c.corners ? kRaw[(t + i) % 8] : 6 * replay::uniform(seed, 3, t, i);
      for (int64_t i = 0; i < c.shape.Hv; i++)
        b_.row(t)[i] = c.corners ? kRaw[(t + 3 * i) % 8] : 6 * replay::uniform(seed, 4, t, i);
    }
    for (const Matrix* m : {&a_, &b_, &g_, &beta_}) m->push();
    copy_a_ = a_.copy(), copy_b_ = b_.copy();
  }

  void call() override {
    machine_.table.gdn_gates({.a = a_.heads(0, c_.shape.Hv, c_.shape.G),
                              .b = b_.view(),
                              .A_log = floats(A_log_memory_),
                              .dt_bias = floats(dt_bias_memory_),
                              .g = g_.heads(0, c_.shape.Hv, c_.shape.G),
                              .beta = beta_.view()},
                             machine_.stream);
  }

  void judge(Failures& failures) override {
    for (const Matrix* m : {&a_, &b_, &g_, &beta_}) {
      m->pull();
      if (!m->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    }
    if (!a_.equals(copy_a_) || !b_.equals(copy_b_)) failures.push_back("an input was written");
    for (int64_t t = 0; t < a_.rows(); t++) {
      for (int64_t i = 0; i < channels_ && failures.empty(); i++)
        check("g", t, i, g_.row(t)[i], replay::expected_g(A_log_[i / c_.shape.G], dt_bias_[i], a_.row(t)[i]), failures);
      for (int64_t i = 0; i < c_.shape.Hv && failures.empty(); i++)
        check("beta", t, i, beta_.row(t)[i], replay::expected_beta(b_.row(t)[i]), failures);
    }
  }

  int64_t bytes() const override {
    return a_.rows() * 2 * (channels_ + c_.shape.Hv) * static_cast<int64_t>(sizeof(float));
  }

 private:
  static void check(const char* what, int64_t t, int64_t i, float got, const replay::Expected& want,
                    Failures& failures) {
    if (!replay::near(got, want))
      failures.push_back(
          fmt::format("{} {} of token {} is {}, oracle {} +- {}", what, i, t, got, want.value, want.tolerance));
  }

  const Case c_;
  const Machine machine_;
  int64_t channels_;
  std::vector<float> A_log_, dt_bias_;
  Buffer A_log_memory_, dt_bias_memory_;
  Matrix a_, b_, g_, beta_;
  std::vector<std::byte> copy_a_, copy_b_;
};

}  // namespace

std::unique_ptr<Job> make_gates_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<GatesJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
