// Any text as config.json and generation_config.json: it is refused with Error, or gives a config that can be used.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/config.h"
#include "model/generation_config.h"
#include "model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const deltaring::ModelConfig config = deltaring::parse_model_config(text, "fuzz");
    if (deltaring::expected_tensors(config).size() < config.layer_types.size()) std::abort();
    if (deltaring::to_string(config).empty()) std::abort();
  } catch (const deltaring::Error&) {
  }
  try {
    deltaring::ModelConfig model;
    model.vocab_size = 1000;
    for (int64_t id : deltaring::parse_generation_config(text, "fuzz", model).eos_token_id) {
      if (id < 0 || id >= model.vocab_size) std::abort();
    }
  } catch (const deltaring::Error&) {
  }
  return 0;
}
