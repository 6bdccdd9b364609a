// The chain in float64 from exact inputs, nothing rounded anywhere: what errors are measured against.
#pragma once
#include <functional>
#include <span>

#include "numerics/tokens.h"

namespace deltaring::numerics {

struct Exact {
  std::vector<double> out;                  // [count, Hv, V]
  std::vector<std::vector<double>> states;  // [Hv, V, K] per mark: the state behind token mark-1
};

// One value head of the chain. S is [K, V], V contiguous.
class ExactHead {
 public:
  explicit ExactHead(const Shape& shape);
  void set(const float* S);  // [V, K]
  // What error bounds are made of: the norms of S e^g, v, S e^g k^ and q^ in a step.
  struct Norms {
    double kept, v, seen, q;
  };
  // Token t of value head `head`; out [V]. Norms only when asked for.
  void step(const Tokens& tokens, int64_t t, int64_t head, double* out, Norms* norms = nullptr);
  void store(double* S) const;  // [V, K]
  double norm() const;          // of S, Frobenius

 private:
  int64_t K_, V_;
  std::vector<double> S_, q_, k_, d_;
};

Exact exact(const Tokens& tokens, std::span<const int64_t> marks);

}  // namespace deltaring::numerics
