// How positions turn query and key dims: plain rotary frequencies, or those of a context stretched with YaRN.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace deltaring {

class JsonFields;

constexpr int64_t kMaxPositions = int64_t{1} << 30;  // that a config may name

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

// What the rope op takes of them.
struct Rotary {
  std::vector<double> frequency;  // [rotary / 2]
  double amplitude = 1;
};
Rotary make_rotary(int64_t rotary, double theta, const std::optional<YarnScaling>& yarn);

// The rotary options of a config. New files keep them in rope_parameters, old ones beside the others and in
// rope_scaling.
struct RotaryOptions {
  double rope_theta = 0;
  double partial_rotary_factor = 1;  // share of a head's dims that rotate
  std::optional<YarnScaling> yarn;
};

// partial: the share where the config names none. max_position_embeddings: the config's, 0 where it names none. Throws
// Error(corrupt) for impossible values, Error(unsupported) for kinds of scaling that are not YaRN, naming the key.
RotaryOptions parse_rotary(const JsonFields& fields, double partial, int64_t max_position_embeddings);

}  // namespace deltaring
