// Weights in float8 with a scale a block, as the official FP8 checkpoints have them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace deltaring {

class JsonFields;

struct BlockFp8 {
  std::vector<std::string> modules_to_not_convert;  // names of modules, whole, their first or their last part

  // Whether the config has a linear layer's weight in float8. The tensors of a file decide what they are; this says
  // what to expect, and what contradicts it. "model." and "language_model." in front of names do not count.
  bool converts(std::string_view tensor) const;
};

// A quantization_config. Throws Error(unsupported) for any but float8 e4m3 with 128 x 128 blocks and activations that
// are quantised as they come (here they are not: products take them in f32), naming the key and what is supported.
BlockFp8 parse_block_fp8(const JsonFields& quantization);

// The tensor that holds the scales of a tensor.
std::string scales_name(const std::string& tensor);

}  // namespace deltaring
