// linear.
#include <cmath>

#include "op_test/weights.h"

namespace deltaring::op_test {

namespace {

using replay::Matrix;

class LinearJob final : public Job {
 public:
  LinearJob(const Case& c, const Machine& machine, uint64_t seed)
      : machine_(machine),
        w_(machine.device, c.matrix.N, c.matrix.K, c.matrix.weights, seed),
        x_(machine.device, c.B * c.T, c.matrix.K),
        out_(machine.device, c.B * c.T, c.matrix.N) {
    for (int64_t m = 0; m < x_.rows(); m++)
      for (int64_t k = 0; k < x_.columns(); k++) x_.row(m)[k] = replay::uniform(seed, 5, m, k);
    x_.push(), out_.push();
    copy_ = x_.copy();
  }

  void call() override {
    machine_.table.linear({.x = x_.view(), .w = w_.matrix(), .out = out_.view()}, machine_.stream);
  }

  void judge(Failures& failures) override {
    x_.pull(), out_.pull();
    if (!x_.equals(copy_)) failures.push_back("an input was written");
    if (!x_.gaps_intact() || !out_.gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    for (int64_t m = 0; m < x_.rows() && failures.empty(); m++) {
      for (int64_t n = 0; n < out_.columns() && failures.empty(); n++) {
        const replay::Expected want = product(x_.row(m), w_, n);
        if (replay::near(out_.row(m)[n], want)) continue;
        failures.push_back(fmt::format("column {} of row {} is {}, oracle {} +- {}", n, m, out_.row(m)[n], want.value,
                                       want.tolerance));
      }
    }
  }

  int64_t bytes() const override {
    return w_.bytes() + x_.rows() * (x_.columns() + out_.columns()) * static_cast<int64_t>(sizeof(float));
  }

 private:
  const Machine machine_;
  const Weight w_;
  Matrix x_, out_;
  std::vector<std::byte> copy_;
};

}  // namespace

std::unique_ptr<Job> make_linear_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<LinearJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
