#include <algorithm>
#include <unordered_map>

#include "backends/cpu/ops.h"
#include "backends/cpu/stream.h"

namespace deltaring::cpu {

namespace {

// What is known of an id before the drafts.
struct Known {
  bool seen = false;
  int64_t output = 0;
  double bias = 0;
};

// One rounding an id, whatever applies to it.
float adjusted(float logit, const Known& id, int64_t drafted, const Penalties& p) {
  double z = logit;
  if (id.seen || drafted > 0) z = z > 0 ? z / p.repetition : z * p.repetition;
  if (id.output + drafted > 0) z -= double{p.frequency} * static_cast<double>(id.output + drafted) + p.presence;
  return static_cast<float>(z + id.bias);
}

}  // namespace

// Memory traffic: logits and out once, 8 vocab bytes a row. Few ids change.
void penalties(const PenaltiesArgs& args, Stream& stream) {
  check(args);
  std::unordered_map<int32_t, Known> known;
  for (const TokenCount& c : args.counts) known[c.id] = {.seen = true, .output = c.output, .bias = 0};
  for (const TokenBias& b : args.bias) known[b.id].bias = b.bias;
  for (const int32_t id : args.drafts) known.try_emplace(id);
  pool_of(stream).parallel_for(args.logits.shape[0], [&](int64_t r) {
    float* out = args.out.f32(r);
    std::copy_n(args.logits.f32(r), args.logits.shape[1], out);
    const std::span<const int32_t> before = args.drafts.first(static_cast<size_t>(r));
    for (const auto& [id, what] : known) {
      out[id] = adjusted(out[id], what, std::count(before.begin(), before.end(), id), args.penalties);
    }
  });
}

}  // namespace deltaring::cpu
