// How positions turn query and key dims: plain rotary frequencies, or those of a context stretched with YaRN.
#pragma once
#include <cstdint>
#include <vector>

namespace deltaring {

// Dims that turn often within the original context keep their frequency, those that turn less than once have it divided
// by factor, and a ramp leads from one to the other.
struct YarnScaling {
  double factor = 1;                             // >= 1: how much longer the context becomes
  int64_t original_max_position_embeddings = 0;  // tokens of the context that the model was trained on
  double beta_fast = 32, beta_slow = 1;          // turns within it where the ramp begins and ends
  bool truncate = true;                          // ends of the ramp go to whole dims
  double attention_factor = 1;                   // multiplies cos and sin
};

// The attention factor that goes with a stretch by `factor` where a config names none: 0.1 mscale ln(factor) + 1.
double yarn_attention_factor(double factor, double mscale = 1);

// Angles a position, [rotary / 2]: theta^(-2i / rotary), or those that YaRN makes of them.
std::vector<double> rotary_frequencies(int64_t rotary, double theta);
std::vector<double> yarn_frequencies(int64_t rotary, double theta, const YarnScaling& yarn);

}  // namespace deltaring
