#include "model/random_weights.h"

#include <cmath>
#include <utility>

namespace deltaring {

namespace {

// splitmix64: a counter through a mixing function, so every seed is a good one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // In [low, high).
  float uniform(float low, float high) { return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f); }

  // Close to N(0, 1), bounded by 6: the sum of 12 uniforms.
  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += uniform(0, 1);
    return sum;
  }

 private:
  uint64_t state_;
};

// FNV-1a, to give each tensor its own stream.
uint64_t hash(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

// Uniform in +-limit with 16 random bits an element, which is finer than bf16 and f16 can tell.
void fill_matrix(const TensorRef& tensor, void* data, int64_t size, float limit, Random& random) {
  const float step = limit / 32768.0f;
  uint64_t bits = 0;
  for (int64_t i = 0; i < size; i++) {
    bits = i % 4 == 0 ? random.bits() : bits >> 16;
    const float centred = static_cast<float>(static_cast<int>(bits & 0xffffu) - 32768) + 0.5f;
    store_from_float(data, tensor.dtype, i, centred * step);
  }
}

float vector_element(std::string_view name, Random& random) {
  if (name.ends_with(".A_log")) return std::log(random.uniform(0.01f, 16));
  if (name.ends_with(".dt_bias")) return random.uniform(-4, 2);
  if (name.ends_with(".conv1d.weight")) return 0.5f * random.normal();
  if (name.ends_with(".linear_attn.norm.weight")) return 1 + 0.3f * random.normal();
  return 0.3f * random.normal();
}

constexpr float kCodes = 64;  // float8 codes are this many times their weights

bool always_f32(std::string_view name) {
  return name.ends_with(".A_log") || name.ends_with(".linear_attn.norm.weight");
}

}  // namespace

RandomWeights::RandomWeights(const ModelConfig& config, DType dtype, uint64_t seed)
    : RandomWeights(expected_tensors(config), dtype, seed) {}

RandomWeights::RandomWeights(const std::vector<TensorSpec>& specs, DType dtype, uint64_t seed) {
  size_t total = 0;
  for (const TensorSpec& spec : specs) {
    TensorRef tensor;
    const bool own = spec.dtype == DType::f8_e4m3 || spec.name.ends_with("_scale_inv") || always_f32(spec.name);
    tensor.dtype = !own ? dtype : always_f32(spec.name) ? DType::f32 : spec.dtype;
    tensor.shape = spec.shape;
    tensor.bytes = size_of(tensor.dtype);
    for (int64_t dim : spec.shape) tensor.bytes *= static_cast<size_t>(dim);
    total += Arena::aligned(tensor.bytes);
    tensors_.emplace(spec.name, std::move(tensor));
  }
  arena_ = Arena(total, "random weights");
  for (const TensorSpec& spec : specs) {
    TensorRef& tensor = tensors_.find(spec.name)->second;
    void* data = arena_.take(tensor.bytes);
    tensor.data = data;
    Random random(seed ^ hash(spec.name));
    const auto size = static_cast<int64_t>(tensor.bytes / size_of(tensor.dtype));
    if (spec.name.ends_with("_scale_inv")) {
      for (int64_t i = 0; i < size; i++) static_cast<float*>(data)[i] = random.uniform(0.5f, 1.5f) / kCodes;
    } else if (spec.is_matrix) {
      const float limit = std::sqrt(3.0f / static_cast<float>(spec.shape.back()));
      fill_matrix(tensor, data, size, tensor.dtype == DType::f8_e4m3 ? kCodes * limit : limit, random);
    } else {
      for (int64_t i = 0; i < size; i++) store_from_float(data, tensor.dtype, i, vector_element(spec.name, random));
    }
  }
}

const TensorRef* RandomWeights::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string> RandomWeights::names() const {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : tensors_) list.push_back(name);
  return list;
}

}  // namespace deltaring
