// One value head's recurrence in double, shared by the replay ops and the snapshot ops.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/gdn.h"

namespace deltaring::reference {

// One token as a value head sees it.
struct Token {
  std::vector<double> q, k;  // [K] normalised, q scaled
  std::vector<double> v;     // [V]
  std::vector<double> g;     // [G]
  double beta;
};

// The inputs of a call, which verify and snapshot_verify share.
struct Inputs {
  View<3> q, k, v, g;  // [tokens, Hk, K], [tokens, Hk, K], [tokens, Hv, V], [tokens, Hv, G]
  View<2> beta;        // [tokens, Hv]
  QkNorm norm;
  float scale;
  DType record;  // k and v are rounded to it before any use
};

Token token_of(const Inputs& in, int64_t head, int64_t token);

// The token that a seat's records hold for position p. Its q is empty.
Token record_of(const GdnState& state, QkNorm norm, int32_t seat, int64_t head, int64_t p);

// The running state of one value head.
class DeltaRule {
 public:
  explicit DeltaRule(const View<2>& from);  // [V, K]

  // S <- S e^g + d k^T with d = beta (v - S e^g k); out [V] = S q when asked for.
  void step(const Token& token, float* out);
  // What the state is once it has been stored as `t`.
  void round(DType t);
  void store(const View<2>& to) const;  // [V, K]

 private:
  int64_t V_, K_;
  std::vector<double> S_;  // [V, K]
};

}  // namespace deltaring::reference
