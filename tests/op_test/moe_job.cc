// moe_route and moe_experts.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <numeric>

#include "op_test/weights.h"

namespace deltaring::op_test {

namespace {

using replay::Buffer, replay::Expected, replay::Matrix;

// choices[token]: expert ids, as the case's seed has them.
class Choices {
 public:
  Choices(const replay::Device& device, int64_t tokens, int64_t choices)
      : choices_(choices), buffer_(device, static_cast<size_t>(tokens * choices) * sizeof(int32_t)) {}
  int32_t* row(int64_t t) const { return reinterpret_cast<int32_t*>(buffer_.data()) + t * choices_; }
  int32_t* device() const { return reinterpret_cast<int32_t*>(buffer_.device()); }
  void push() const { buffer_.push(); }
  void pull() const { buffer_.pull(); }
  bool intact() const { return buffer_.fences_intact(); }

 private:
  int64_t choices_;
  Buffer buffer_;
};

class RouteJob final : public Job {
 public:
  RouteJob(const Case& c, const Machine& machine, uint64_t seed)
      : k_(c.experts.k),
        machine_(machine),
        logits_(machine.device, c.B * c.T, c.experts.count),
        shared_(machine.device, c.B * c.T, 1),
        weight_(machine.device, c.B * c.T, k_ + 1),
        choices_(machine.device, c.B * c.T, k_ + 1) {
    for (int64_t t = 0; t < logits_.rows(); t++) {
      for (int64_t e = 0; e < logits_.columns(); e++) logits_.row(t)[e] = logit(c, seed, t, e);
      shared_.row(t)[0] = 6 * replay::uniform(seed, 2, t, 0);
    }
    for (const Matrix* m : {&logits_, &shared_, &weight_}) m->push();
    choices_.push();
    copy_ = logits_.copy();
  }

  void call() override {
    machine_.table.moe_route({.logits = logits_.view(),
                              .shared = shared_.view(),
                              .k = k_,
                              .expert = choices_.device(),
                              .weight = weight_.view()},
                             machine_.stream);
  }

  void judge(Failures& failures) override {
    for (const Matrix* m : {&logits_, &shared_, &weight_}) m->pull();
    choices_.pull();
    if (!logits_.equals(copy_)) failures.push_back("an input was written");
    if (!weight_.gaps_intact() || !choices_.intact()) failures.push_back("choices were written out of bounds");
    for (int64_t t = 0; t < logits_.rows() && failures.empty(); t++) judge_row(t, failures);
  }

  int64_t bytes() const override {
    return logits_.rows() * (logits_.columns() + 1 + 2 * (k_ + 1)) * static_cast<int64_t>(sizeof(float));
  }

 private:
  static float logit(const Case& c, uint64_t seed, int64_t t, int64_t e) {
    constexpr float kFew[] = {0, 1, -3e4f, 1, 80};  // ties, and far apart
    return c.corners ? kFew[(t + 3 * e) % 5] : 6 * replay::uniform(seed, 1, t, e);
  }

  void judge_row(int64_t t, Failures& failures) {
    const float* logits = logits_.row(t);
    std::vector<int32_t> order(logits_.columns());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [logits](int32_t e) { return logits[e]; });
    double sum = 0;
    for (int64_t i = 0; i < k_; i++) sum += std::exp(double{logits[order[i]]} - logits[order[0]]);
    for (int64_t i = 0; i <= k_; i++) {
      const bool shared = i == k_;
      const int32_t want_expert = shared ? static_cast<int32_t>(logits_.columns()) : order[i];
      const double want = shared ? 1 / (1 + std::exp(-double{shared_.row(t)[0]}))
                                 : std::exp(double{logits[order[i]]} - logits[order[0]]) / sum;
      const Expected weight{want, 2 * replay::roundoff(DType::f32) * want + FLT_MIN};
      if (choices_.row(t)[i] == want_expert && replay::near(weight_.row(t)[i], weight)) continue;
      failures.push_back(fmt::format("choice {} of token {} is expert {} with {}, oracle {} with {} +- {}", i, t,
                                     choices_.row(t)[i], weight_.row(t)[i], want_expert, want, weight.tolerance));
    }
  }

  const int64_t k_;
  const Machine machine_;
  Matrix logits_, shared_, weight_;
  Choices choices_;
  std::vector<std::byte> copy_;
};

// An expert's three matrices.
struct Mlp {
  Weight gate, up, down;
  Mlp(const replay::Device& device, int64_t I, int64_t H, DType dtype, uint64_t seed)
      : gate(device, I, H, dtype, seed), up(device, I, H, dtype, seed + 10), down(device, H, I, dtype, seed + 20) {}
  ExpertWeights weights() const { return {.gate = gate.matrix(), .up = up.matrix(), .down = down.matrix()}; }

  // What one token gets. silu has a slope of at most 1.1 and errs by a few roundings.
  std::vector<Expected> of(const float* x) const {
    constexpr double kRound = 2 * replay::roundoff(DType::f32);
    std::vector<Expected> hidden(gate.N()), out(down.N());
    for (int64_t j = 0; j < gate.N(); j++) {
      const Expected g = product(x, gate, j), u = product(x, up, j);
      const double silu = replay::silu(g.value), value = silu * u.value;
      hidden[j] = {value, 1.1 * g.tolerance * std::fabs(u.value) + std::fabs(silu) * u.tolerance +
                              1.1 * g.tolerance * u.tolerance + 6 * kRound * std::fabs(value)};
    }
    const double terms = kRound * (std::log2(gate.N()) + 3);
    for (int64_t c = 0; c < down.N(); c++) {
      for (int64_t j = 0; j < gate.N(); j++) {
        const double w = down.at(c, j), size = std::fabs(w * hidden[j].value);
        out[c].value += w * hidden[j].value, out[c].tolerance += std::fabs(w) * hidden[j].tolerance + terms * size;
      }
    }
    return out;
  }
};

class ExpertsJob final : public Job {
 public:
  ExpertsJob(const Case& c, const Machine& machine, uint64_t seed)
      : choices_count_(c.experts.k + 1),
        machine_(machine),
        x_(machine.device, c.B * c.T, c.matrix.K),
        weight_(machine.device, c.B * c.T, choices_count_),
        out_(machine.device, c.B * c.T, c.matrix.K),
        rows_(machine.device, c.B * c.T * choices_count_, c.matrix.K),
        gate_(machine.device, c.B * c.T * choices_count_, std::max(c.matrix.N, c.experts.shared)),
        up_(machine.device, gate_.rows(), gate_.columns()),
        choices_(machine.device, c.B * c.T, choices_count_),
        table_(machine.device, static_cast<size_t>(c.experts.count + 1) * sizeof(ExpertWeights)) {
    for (int64_t e = 0; e <= c.experts.count; e++) {
      const int64_t width = e == c.experts.count ? c.experts.shared : c.matrix.N;
      mlps_.emplace_back(machine.device, width, c.matrix.K, c.matrix.weights, seed + 100 * static_cast<uint64_t>(e));
      const ExpertWeights weights = mlps_.back().weights();
      std::memcpy(table_.data() + static_cast<size_t>(e) * sizeof weights, &weights, sizeof weights);
    }
    for (int64_t t = 0; t < x_.rows(); t++) {
      for (int64_t k = 0; k < x_.columns(); k++) x_.row(t)[k] = replay::uniform(seed, 7, t, k);
      for (int64_t i = 0; i < choices_count_; i++) {
        weight_.row(t)[i] = std::fabs(replay::uniform(seed, 8, t, i));
        const bool shared = i + 1 == choices_count_;
        choices_.row(t)[i] = static_cast<int32_t>(shared ? c.experts.count : (3 * t + 5 * i) % c.experts.count);
      }
      std::fill_n(out_.row(t), out_.columns(), 0.5f);
    }
    for (const Matrix* m : {&x_, &weight_, &out_, &rows_, &gate_, &up_}) m->push();
    choices_.push(), table_.push();
    copy_ = x_.copy();
  }

  void call() override {
    machine_.table.moe_experts({.x = x_.view(),
                                .expert = choices_.device(),
                                .weight = weight_.view(),
                                .experts = reinterpret_cast<const ExpertWeights*>(table_.device()),
                                .count = std::ssize(mlps_),
                                .rows = rows_.view(),
                                .gate = gate_.view(),
                                .up = up_.view(),
                                .out = out_.view()},
                               machine_.stream);
  }

  void judge(Failures& failures) override {
    for (const Matrix* m : {&x_, &weight_, &out_, &rows_, &gate_, &up_}) {
      m->pull();
      if (!m->gaps_intact()) failures.push_back("a token buffer was written out of bounds");
    }
    if (!x_.equals(copy_)) failures.push_back("an input was written");
    for (int64_t t = 0; t < x_.rows() && failures.empty(); t++) {
      std::vector<Expected> want(out_.columns(), Expected{0.5, 4 * replay::roundoff(DType::f32)});
      for (int64_t i = 0; i < choices_count_; i++) {
        const std::vector<Expected> part = mlps_[choices_.row(t)[i]].of(x_.row(t));
        const double w = weight_.row(t)[i];
        for (size_t c = 0; c < want.size(); c++) {
          want[c].value += w * part[c].value;
          want[c].tolerance += w * (part[c].tolerance + 8 * replay::roundoff(DType::f32) * std::fabs(part[c].value));
        }
      }
      for (int64_t c = 0; c < out_.columns() && failures.empty(); c++) {
        if (replay::near(out_.row(t)[c], want[c])) continue;
        failures.push_back(fmt::format("column {} of token {} is {}, oracle {} +- {}", c, t, out_.row(t)[c],
                                       want[c].value, want[c].tolerance));
      }
    }
  }

  // Weights of the experts that some token chose, rows of x and out.
  int64_t bytes() const override {
    std::vector<bool> chosen(mlps_.size());
    for (int64_t i = 0; i < x_.rows() * choices_count_; i++) chosen[choices_.row(0)[i]] = true;
    int64_t total = x_.rows() * 3 * x_.columns() * static_cast<int64_t>(sizeof(float));
    for (size_t e = 0; e < mlps_.size(); e++) {
      if (chosen[e]) total += mlps_[e].gate.bytes() + mlps_[e].up.bytes() + mlps_[e].down.bytes();
    }
    return total;
  }

 private:
  const int64_t choices_count_;
  const Machine machine_;
  Matrix x_, weight_, out_, rows_, gate_, up_;
  Choices choices_;
  Buffer table_;  // ExpertWeights of all
  std::vector<Mlp> mlps_;
  std::vector<std::byte> copy_;
};

}  // namespace

std::unique_ptr<Job> make_moe_route_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<RouteJob>(c, machine, seed);
}

std::unique_ptr<Job> make_moe_experts_job(const Case& c, const Machine& machine, uint64_t seed) {
  return std::make_unique<ExpertsJob>(c, machine, seed);
}

}  // namespace deltaring::op_test
