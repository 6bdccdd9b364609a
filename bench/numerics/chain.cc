#include "numerics/chain.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace deltaring::numerics {

namespace {

constexpr uint32_t kAcceptance = 100;  // sequence of draws

int64_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); i++) count += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  return count;
}

double relative(const float* x, const double* exact, int64_t count) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) error += (x[i] - exact[i]) * (x[i] - exact[i]), norm += exact[i] * exact[i];
  return std::sqrt(error / norm);
}

}  // namespace

Trajectory run(const Scheme& scheme, const Schedule& schedule, const Tokens& tokens, std::span<const int64_t> marks,
               std::span<const float> initial, const OpTable& ops, Stream& stream) {
  const Shape& s = tokens.shape;
  Trajectory result{std::vector<float>(tokens.count * s.Hv * s.V), {}};
  Window window(s, schedule.T);
  const auto decoder = make_decoder(scheme, s, schedule.T, initial, ops, stream);
  int64_t pos = 0;
  for (const int64_t mark : marks) {
    while (pos < mark) {
      const double coin = schedule.all_accepted ? 1 : uniform(kAcceptance, pos);
      const int64_t drawn = std::min(schedule.T, 1 + static_cast<int64_t>(coin * static_cast<double>(schedule.T)));
      const int64_t acc = std::min(drawn, mark - pos);
      window.fill(tokens, pos, acc);
      decoder->step(window, acc);
      std::copy_n(window.out.begin(), acc * s.Hv * s.V, result.out.begin() + pos * s.Hv * s.V);
      pos += acc;
    }
    decoder->state(result.states.emplace_back(s.state()));
  }
  return result;
}

int64_t differing(const Trajectory& a, const Trajectory& b) {
  int64_t count = differing(a.out, b.out);
  for (size_t m = 0; m < a.states.size(); m++) count += differing(a.states[m], b.states[m]);
  return count;
}

Errors errors(const Trajectory& trajectory, const Exact& exact, const Tokens& tokens, std::span<const int64_t> marks) {
  const Shape& s = tokens.shape;
  Errors e;
  for (size_t m = 0; m < marks.size(); m++) {
    std::vector<double>&state = e.state.emplace_back(), &out = e.out.emplace_back();
    for (int64_t h = 0; h < s.Hv; h++) {
      const int64_t at = h * s.V * s.K;
      state.push_back(relative(&trajectory.states[m][at], &exact.states[m][at], s.V * s.K));
      double squares = 0, norm = 0;
      for (int64_t t = std::max<int64_t>(0, marks[m] - Errors::kSmooth); t < marks[m]; t++) {
        for (int64_t i = (t * s.Hv + h) * s.V; i < (t * s.Hv + h + 1) * s.V; i++) {
          const double difference = trajectory.out[i] - exact.out[i];
          squares += difference * difference, norm += exact.out[i] * exact.out[i];
        }
      }
      out.push_back(std::sqrt(squares / norm));
    }
  }
  return e;
}

double over_heads(const std::vector<double>& errors) {
  double squares = 0;
  for (const double e : errors) squares += e * e;
  return std::sqrt(squares / static_cast<double>(errors.size()));
}

}  // namespace deltaring::numerics
