// How badly counts fit a law.
#pragma once
#include <cmath>
#include <limits>
#include <vector>

namespace deltaring::test {

// Chi-square of the counts divided by its quantile at 1e-6 (Wilson and Hilferty): above 1 the law is another one.
// Cells that expect fewer than 5 are one cell; a count where the law has 0 is infinite.
inline double misfit(const std::vector<double>& law, const std::vector<int>& counts, int trials) {
  double chi2 = 0, rare_expected = 0;
  int rare = 0, cells = 0;
  const auto add = [&](double expected, int count) {
    chi2 += (count - expected) * (count - expected) / expected;
    cells++;
  };
  for (size_t i = 0; i < law.size(); i++) {
    const double expected = law[i] * trials;
    if (expected == 0 && counts[i] > 0) return std::numeric_limits<double>::infinity();
    if (expected >= 5) {
      add(expected, counts[i]);
    } else {
      rare_expected += expected;
      rare += counts[i];
    }
  }
  if (rare_expected >= 5) add(rare_expected, rare);
  const double k = cells - 1;
  if (k == 0) return 0;
  constexpr double kZ = 4.7534;  // of the normal law, one-sided 1e-6
  const double root = 1 - 2 / (9 * k) + kZ * std::sqrt(2 / (9 * k));
  return chi2 / (k * root * root * root);
}

}  // namespace deltaring::test
