#include "backends/cuda/gdn/verify/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

namespace {

constexpr int kScratchHead = 1088;  // bytes; inst.cuh holds it against the struct

int tiles(int64_t count) { return static_cast<int>((count + 7) / 8); }
int aligned(int bytes) { return (bytes + 127) / 128 * 128; }

// Bytes of the tokens block of a unit of `heads` heads with n records and T window tokens, or none and all folded.
int unit_bytes(const VerifyDesc& d, int64_t T, bool exact, int64_t n, int64_t heads) {
  VerifyParams params{};
  params.R = static_cast<int32_t>(d.R), params.log2_F = d.F == 8 ? 3 : 4, params.exact = exact;
  Unit unit{.heads = static_cast<int32_t>(heads), .T = static_cast<int32_t>(T), .n = static_cast<int32_t>(n)};
  if (T == 0) unit.folds = unit.n & -(1 << params.log2_F);
  Segment segments[kSegments];
  cut(params, unit, segments, true);
  return unit.tokens_block();
}

// The largest that a ring of R rows allows. Fewer records by a grain are a segment less, so the last ones decide.
int largest_unit(const VerifyDesc& d, int64_t T, bool exact, int64_t heads) {
  int largest = 0;
  for (int64_t n = std::max<int64_t>(d.R - T - d.F, 0); n <= d.R; n++)
    largest =
        std::max({largest, unit_bytes(d, std::min(T, d.R - n), exact, n, heads), unit_bytes(d, 0, exact, n, heads)});
  return largest;
}

int scratch_bytes(int key_tiles, int query_tiles) {
  return aligned(kScratchHead + 32 * (key_tiles + query_tiles) * (8 * key_tiles + 4));
}

// Why tensor cores cannot serve, or null.
const char* unserved(const VerifyDesc& d, const DeviceLimits& device) {
  if (d.K != kHead || d.V != kHead) return "head dims other than 128 x 128";
  if (d.G != 1) return "a decay a key channel";
  if (d.tokens != DType::bf16 || d.records != DType::bf16) return "tokens or records other than bf16";
  if (d.F == 0) return "a checkpoint off the grid";
  if (d.prefill && !d.exact) return "a prefill that need not have the bits of verifies";
  if (d.R > kMostRecords || !std::has_single_bit(static_cast<uint64_t>(d.R))) return "a ring of more than 64 rows";
  if (d.R < d.F + 1) return "a ring that the grid does not allow";
  if (!d.aligned) return "rows that do not begin on 16 bytes, or strides above 2^31";
  if (device.capability < 80) return "a device before sm_80";
  if (d.B * d.Hv > std::numeric_limits<int32_t>::max()) return "more heads than a grid has blocks";
  return nullptr;
}

}  // namespace

VerifyPlan plan_verify(const VerifyDesc& d, const DeviceLimits& device) {
  if (const char* why = unserved(d, device)) return {.exact = true, .reason = why};
  // Where bits count, one arithmetic serves every window of a ring: that of the widest.
  VerifyDesc widest_window = d;
  widest_window.T = std::min<int64_t>(8 * kQueryTiles, d.R), widest_window.prefill = false;
  if (d.exact && (d.prefill || d.T < widest_window.T)) {
    const VerifyPlan plan = plan_verify(widest_window, device);
    if (plan.kernel == VerifyKernel::generic) return plan;
  }
  const int element = static_cast<int>(size_of(d.state)), state = kHead * kHead * element;
  // A chunk is folded by the next: F-1 records at most are left, then two chunks.
  const int64_t most_tokens = d.prefill ? std::min<int64_t>((d.R - d.F + 1) / 2, 16) : 16;
  const int64_t wanted = d.prefill ? d.T : std::min(d.T, d.R);  // a verify has at most a ring of tokens
  const int64_t T = std::clamp<int64_t>(wanted, 1, most_tokens), chunks = std::max<int64_t>((wanted + T - 1) / T, 1);
  const bool exact = d.exact || chunks > 1;
  const int64_t group = d.Hv / d.Hk, widest = exact ? d.F : d.F - 1 + T;
  VerifyPlan plan{.exact = exact,
                  .prefill = d.prefill,
                  .early = device.capability >= 90,
                  .chunk = static_cast<int>(T),
                  .launches = static_cast<int>(chunks + 2 * d.prefill)};
  plan.wide = T > 8 || widest > 24;
  plan.scratch = scratch_bytes(tiles(std::max(widest, d.F)), tiles(T));
  const int64_t heads = d.B * d.Hv;
  const int values = aligned(static_cast<int>(d.R) * value_pitch(1)), slices = slices_of(element);

  // Few heads: each has a multiprocessor, or half of one, to itself, and only the way to the first byte counts.
  plan.shared = state + values + largest_unit(d, T, exact, 1) + 8 * kKeyPitch + plan.scratch;
  const bool few = 2 * heads <= 3 * device.multiprocessors, fits = plan.shared + kDirectStatic <= device.shared_bytes;
  plan.tokens = std::max(largest_unit(d, T, exact, group), (plan.wide ? 64 : 56) * 1024);
  plan.states = (device.shared_bytes - kPipelineStatic - plan.tokens - kPreparers * plan.scratch) / 128 * 128;
  const bool flows = device.capability >= 90 && plan.states >= 2 * (state / slices + values) && group <= 32;
  if (!flows || (few && fits)) {
    if (!fits) return {.exact = true, .reason = "shared memory too small for a head's state and tokens"};
    plan.kernel = VerifyKernel::direct, plan.threads = kDirectThreads, plan.blocks = static_cast<int>(heads);
    plan.tokens = plan.states = 0;
    plan.reason =
        few ? "no more heads than the multiprocessors take at once" : "no room or no bulk copies for a pipeline";
    return plan;
  }
  plan.kernel = VerifyKernel::pipeline, plan.threads = kPipelineThreads;
  plan.blocks = static_cast<int>(std::min<int64_t>(d.B * d.Hk, device.multiprocessors));
  plan.shared = device.shared_bytes - kPipelineStatic;
  plan.reason = "enough heads to keep the memory busy";
  return plan;
}

std::string to_string(const VerifyPlan& p) {
  const char* name = p.kernel == VerifyKernel::generic  ? "generic"
                     : p.kernel == VerifyKernel::direct ? "direct"
                                                        : "pipeline";
  std::string text = fmt::format("{}{}{}", name, p.exact ? " exact" : "", p.wide ? " wide" : "");
  if (p.kernel != VerifyKernel::generic)
    text += fmt::format(": {} x {} blocks of {} threads, {} tokens a row, {} bytes shared", p.launches, p.blocks,
                        p.threads, p.chunk, p.shared);
  if (p.kernel == VerifyKernel::pipeline)
    text += fmt::format(" (tokens {}, states {}, scratch {} x {})", p.tokens, p.states, kPreparers, p.scratch);
  return text + "; " + p.reason;
}

}  // namespace deltaring::cuda
