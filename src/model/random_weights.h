// Weights made up in memory, for tests and benches of models that cannot be had.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
#include "base/dtype.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "model/weights.h"

namespace deltaring {

// Every tensor of expected_tensors(config), each a function of its name, the seed and the dtype alone. Distributions
// are chosen such that a forgotten 1 + w, a wrong head mapping or a wrong decay shows: zero-centred norms N(0, 0.3),
// the gated norm 1 + N(0, 0.3), dt_bias U(-4, 2), A_log = log U(0.01, 16), conv N(0, 0.5), matrices uniform with
// variance 1 / fan_in.
class RandomWeights : public TensorSource {
 public:
  // A_log and linear_attn.norm are F32 as in published files, linear layers that the config has in float8 are that,
  // with scales between 0.5 and 1.5 times one another; everything else is `dtype`. Throws Error(out_of_memory) when the
  // tensors do not fit.
  RandomWeights(const ModelConfig& config, DType dtype, uint64_t seed);
  // The same for any tensors, for those of a drafter.
  RandomWeights(const std::vector<TensorSpec>& specs, DType dtype, uint64_t seed);

  const TensorRef* find(std::string_view name) const override;
  std::vector<std::string> names() const override;

 private:
  Arena arena_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
};

}  // namespace deltaring
