#include "backends/cuda/gdn/verify/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "backends/cuda/gdn/verify/units.h"

namespace deltaring::cuda {

namespace {

// Bytes of a key's v for the rows of a tile.
int value_pitch(DType state) { return kTileBytes / kHead / static_cast<int>(size_of(state)) * 2; }
constexpr int64_t kMostRows = 65535;  // of a grid's second and third dimension
int aligned(int bytes) { return (bytes + 127) / 128 * 128; }

// Keys of which a segment that is folded has no more. Off the grid, where rings are short, a state is rounded only
// where it is stored.
int64_t grain_of(const VerifyDesc& d) { return d.F > 0 ? d.F : d.R; }

// A unit with n records, so many of them folded, and T window tokens.
Unit planned_unit(const VerifyDesc& d, int64_t T, bool exact, int64_t n, int64_t folds, int64_t heads) {
  VerifyParams params{};
  params.R = static_cast<int32_t>(d.R), params.log2_F = std::countr_zero(static_cast<uint64_t>(grain_of(d)));
  params.exact = exact, params.on_grid = d.F > 0;
  Unit unit{.heads = static_cast<int32_t>(heads),
            .T = static_cast<int32_t>(T),
            .n = static_cast<int32_t>(n),
            .folds = static_cast<int32_t>(folds)};
  unit.opening = opening_of(params, unit);
  Segment segments[kSegments];
  cut(params, unit, segments);
  return unit;
}

// What a block needs besides states and v: room for one head of the largest part of T tokens, without its scratch where
// there are more records than a step that folds what is due leaves; and for so many heads together of others.
struct Needs {
  int least, together;
};
Needs needs_of(const VerifyDesc& d, int64_t T, bool exact, int64_t heads) {
  // A verify fits the ring; a prefill's part is folded by the next one, so F-1 and two parts are left at most.
  const int64_t keys = d.prefill ? std::max(d.R, d.F - 1 + 2 * T) : d.R;
  Needs needs{};
  for (int64_t n = 0; n <= keys; n++) {
    // On the grid what is due is cut, folded or not; off it a fold may end anywhere.
    const int64_t least = d.F > 0 ? n & -d.F : 0, most = d.F > 0 ? least : n;
    const bool usual = n < grain_of(d) + T;
    for (const int64_t tokens : {std::min(T, keys - n), int64_t{0}}) {
      for (int64_t folds = least; folds <= most; folds++) {
        const Unit unit = planned_unit(d, tokens, exact, n, folds, heads);
        if (unit.segments == 0) continue;
        needs.least = std::max(needs.least, usual ? unit.end(1) : unit.scratches(1));
        if (usual) needs.together = std::max(needs.together, unit.end(static_cast<int>(heads)));
      }
    }
  }
  return {aligned(needs.least), aligned(std::max(needs.least, needs.together))};
}

// Why tensor cores cannot serve, or null.
const char* unserved(const VerifyDesc& d, const DeviceLimits& device) {
  if (d.K != kHead || d.V != kHead) return "head dims other than 128 x 128";
  if (d.G != 1) return "a decay a key channel";
  if (d.tokens != DType::bf16 || d.records != DType::bf16) return "tokens or records other than bf16";
  if (d.F == 0 && d.prefill) return "a prefill off the grid";
  if (d.F == 0 && d.exact && d.state == DType::f32) return "a float32 state off the grid whose bits count";
  if (d.F == 0 && d.T > 0 && d.R > 16) return "a verify off the grid with a ring of more than 16 rows";
  if (d.F == 0 && d.R > 32) return "a fold off the grid with a ring of more than 32 rows";
  if (d.prefill && !d.exact) return "a prefill that need not have the bits of verifies";
  if (d.R > kMostRecords || !std::has_single_bit(static_cast<uint64_t>(d.R))) return "a ring of more than 64 rows";
  if (d.R < d.F + 1) return "a ring that the grid does not allow";
  if (!d.aligned) return "rows that do not begin on 16 bytes, or strides above 2^31";
  if (device.capability < 80) return "a device before sm_80";
  if (std::max(d.B, d.layers) > kMostRows) return "more rows than a grid has";
  return nullptr;
}

// Turns until all of `blocks` blocks of so many heads and behind them `single` of one have run, `slots` at a time. A
// block takes a turn a head and kBegin to begin.
int64_t turns_of(int64_t slots, int64_t heads, int64_t blocks, int64_t single) {
  constexpr int64_t kBegin = 2, kSingle = kBegin + 1;
  const int64_t waves = blocks / slots, busy = blocks % slots, free_at = waves * (kBegin + heads),
                end = free_at + (busy > 0 ? kBegin + heads : 0);
  int64_t last = end;
  for (int64_t i = 1; single > 0; i++) {
    last = free_at + i * kSingle;
    single -= slots - busy;
    if (last - kSingle >= end) single -= busy;
  }
  return std::max(last, end);
}

// How many of the last rows have blocks of one head, for what takes the fewest turns: those of a last wave that would
// be almost empty.
int64_t best_single(const VerifyDesc& d, int64_t slots, int64_t heads, int64_t shares) {
  if (d.layers > 1 || d.B * kWarps > kMostRows) return 0;
  int64_t best = 0, least = 0;
  for (int64_t single = 0; single <= std::min(d.B, slots / d.Hv); single++) {
    const int64_t turns = turns_of(slots, heads, (d.B - single) * d.Hk * shares, single * d.Hv);
    if (single == 0 || turns < least) best = single, least = turns;
  }
  return best;
}

}  // namespace

VerifyPlan plan_verify(const VerifyDesc& d, const DeviceLimits& device) {
  if (const char* why = unserved(d, device)) return {.exact = true, .reason = why};
  // Where bits count, one arithmetic serves every window of a ring: that of the widest.
  VerifyDesc widest_window = d;
  widest_window.T = std::min<int64_t>(8 * kQueryTiles, d.R), widest_window.prefill = false;
  if (d.exact && d.F > 0 && (d.prefill || d.T < widest_window.T)) {
    const VerifyPlan plan = plan_verify(widest_window, device);
    if (plan.kernel == VerifyKernel::generic) return plan;
  }
  const int64_t wanted = d.prefill ? d.T : std::min(d.T, d.R);  // a verify has at most a ring of tokens
  const int64_t T = std::clamp<int64_t>(wanted, 1, 8 * kQueryTiles), parts = std::max<int64_t>((wanted + T - 1) / T, 1);
  const bool exact = d.F > 0 && (d.exact || parts > 1);
  // Of a segment, at most.
  const int64_t keys = d.F == 0 || exact ? grain_of(d) : d.F - 1 + T;
  const int64_t group = d.Hv / d.Hk, queries = std::min(T, keys);
  const bool overlaps = device.capability >= 90;
  VerifyPlan plan{.kernel = VerifyKernel::tensor,
                  .exact = exact,
                  .prefill = d.prefill,
                  .part = static_cast<int>(T),
                  .first_part = -d.prefill,
                  .parts = static_cast<int>(parts) + d.prefill,
                  .grain = static_cast<int>(grain_of(d)),
                  .wide = queries > 8 || keys > 24,
                  .layers = d.layers,
                  .values = aligned(static_cast<int>((std::max(keys, d.F) + 7) / 8 * 8) * value_pitch(d.state))};
  // Plans blocks of so many heads, and of one for the last rows. Several blocks share a multiprocessor: as many as
  // registers allow and the room of one head; heads that do not fit together are prepared in v's place, or in turns.
  // Returns how many run at a time.
  const auto take = [&](int64_t heads, int64_t single) {
    plan.heads = static_cast<int>(heads), plan.shares = static_cast<int>((group + heads - 1) / heads);
    plan.whole = d.B - single, plan.single = single, plan.blocks = d.layers * plan.turns() * d.Hk * plan.shares;
    const Needs needs = needs_of(d, T, exact, heads);
    const int fixed = kWarps * (kTileBytes + plan.values) + kHeaderBytes;
    int resident = resident_blocks(plan.wide), room = 0;
    for (; resident > 0; resident--) {
      const int each = std::min(device.shared_of_all / resident - device.shared_reserved, device.shared_bytes);
      room = (each - fixed) / 128 * 128;
      if (room >= needs.least) break;
    }
    plan.room = std::min(room, needs.together), plan.shared = fixed + plan.room;
    const int64_t slots = int64_t{resident} * device.multiprocessors;
    plan.early = overlaps ? std::min(plan.blocks, slots) : 0;
    return slots;
  };
  const int64_t slots = take(1, 0);
  if (slots == 0) return {.exact = true, .reason = "shared memory too small for a head's state and tokens"};
  plan.reason = group == 1 ? "each head has a block: it shares its tokens with no other"
                           : "each head has a block: all of them run at once";
  const auto blocks_of = [&](int64_t heads) { return d.layers * d.B * d.Hk * ((group + heads - 1) / heads); };
  if (group == 1 || 2 * blocks_of(1) <= slots) return plan;
  // Where launches may overlap, one whose blocks fit beside those of the launch before it is worth more than blocks of
  // one head, as long as these are short.
  if (overlaps && !plan.wide && size_of(d.state) == 2 && 2 * blocks_of(2) <= slots) {
    take(2, 0);
    plan.reason = "two heads have a block: a launch fits beside the one before it";
    return plan;
  }
  if (blocks_of(1) <= slots) return plan;
  const int64_t heads = std::min<int64_t>(group, kWarps);
  take(heads, best_single(d, slots, heads, (group + heads - 1) / heads));
  plan.reason = plan.single > 0 ? "blocks follow each other: heads share their tokens, but for rows of a last wave"
                                : "blocks follow each other: the heads of a key head share their tokens";
  return plan;
}

std::string to_string(const VerifyPlan& p) {
  const char* name = p.kernel == VerifyKernel::generic ? "generic" : "tensor";
  std::string text = fmt::format("{}{}{}", name, p.exact ? " exact" : "", p.wide ? " wide" : "");
  if (p.kernel != VerifyKernel::generic)
    text += fmt::format(": {} blocks of {} heads,{} {} parts of {} tokens, {} bytes shared", p.blocks, p.heads,
                        p.single > 0 ? fmt::format(" those of {} rows of one,", p.single) : "", p.parts - p.first_part,
                        p.part, p.shared);
  return text + "; " + p.reason;
}

}  // namespace deltaring::cuda
