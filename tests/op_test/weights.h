// Weight matrices of a case, and what a product with one may give.
#pragma once
#include <cmath>
#include <optional>

#include "op_test/inputs.h"

namespace deltaring::op_test {

// [N, K] of any dtype, with scales of its blocks where there are codes.
class Weight {
 public:
  Weight(const replay::Device& device, int64_t N, int64_t K, DType dtype, uint64_t seed)
      : values_(device, N, K, dtype) {
    fill(values_, seed, 0);
    if (dtype != DType::f8_e4m3) return;
    scales_.emplace(device, WeightMatrix::blocks(N), WeightMatrix::blocks(K));
    fill(*scales_, seed + 1, 1.5f);
  }

  WeightMatrix matrix() const { return {values_.view(), scales_ ? scales_->view() : View<2>()}; }
  int64_t N() const { return values_.rows(); }
  int64_t K() const { return values_.columns(); }
  double at(int64_t n, int64_t k) const {
    const double value = values_.at(n, k);
    return scales_ ? value * scales_->at(n / WeightMatrix::kBlock, k / WeightMatrix::kBlock) : value;
  }
  int64_t bytes() const {
    const auto of = [](const replay::Matrix& m) {
      return m.rows() * m.columns() * static_cast<int64_t>(size_of(m.dtype()));
    };
    return of(values_) + (scales_ ? of(*scales_) : 0);
  }

 private:
  static void fill(const replay::Matrix& m, uint64_t seed, float offset) {
    std::vector<float> row(m.columns());
    for (int64_t i = 0; i < m.rows(); i++) {
      for (int64_t k = 0; k < m.columns(); k++) row[k] = offset + replay::uniform(seed, 6, i, k);
      m.set_row(i, row.data());
    }
    m.push();
  }

  replay::Matrix values_;
  std::optional<replay::Matrix> scales_;
};

// x . row n of w. A sum of K products in f32 errs by a few more than log2 K roundings of the sum of their sizes.
inline replay::Expected product(const float* x, const Weight& w, int64_t n) {
  double sum = 0, size = 0;
  for (int64_t k = 0; k < w.K(); k++) {
    const double term = double{x[k]} * w.at(n, k);
    sum += term, size += std::fabs(term);
  }
  return {sum, 2 * replay::roundoff(DType::f32) * ((std::log2(w.K()) + 3) * size + std::fabs(sum))};
}

}  // namespace deltaring::op_test
