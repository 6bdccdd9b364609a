// Elements of a weight matrix.
#pragma once
#include "ops/linear.h"

namespace deltaring::reference {

// Element (n, k), exactly: a code and its scale are not rounded behind their product.
inline double weight(const WeightMatrix& w, int64_t n, int64_t k) {
  const double value = load_as_float(w.values.data, w.values.dtype, w.values.offset(n, k));
  if (!w.scales) return value;
  const int64_t block = w.scales.offset(n / WeightMatrix::kBlock, k / WeightMatrix::kBlock);
  return value * load_as_float(w.scales.data, w.scales.dtype, block);
}

}  // namespace deltaring::reference
