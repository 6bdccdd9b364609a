#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deltaring {

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

std::vector<double> rotary_frequencies(int64_t rotary, double theta) {
  std::vector<double> frequency(static_cast<size_t>(rotary / 2));
  for (size_t i = 0; i < frequency.size(); i++) {
    frequency[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
  }
  return frequency;
}

std::vector<double> yarn_frequencies(int64_t rotary, double theta, const YarnScaling& yarn) {
  // The dim pair whose frequency turns `turns` times within the original context, as a real number.
  const auto pair_of = [&](double turns) {
    const double wavelength = static_cast<double>(yarn.original_max_position_embeddings) / turns;
    return static_cast<double>(rotary) * std::log(wavelength / (2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_of(yarn.beta_fast), high = pair_of(yarn.beta_slow);
  if (yarn.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotary - 1));
  if (low == high) high += 0.001;
  std::vector<double> frequency = rotary_frequencies(rotary, theta);
  for (size_t i = 0; i < frequency.size(); i++) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency[i] *= stretched / yarn.factor + (1 - stretched);
  }
  return frequency;
}

}  // namespace deltaring
