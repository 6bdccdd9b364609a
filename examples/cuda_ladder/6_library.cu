// Level 6: the same call through the library, deltaring::OpTable::gdn_verify. Level 4 in small blocks whose tiles of
// state are filled anew as soon as they have been read, with everything that a service needs: any T and any records
// behind the checkpoint, folds, other dtypes, ragged rows; docs/kernels.md says how.
#include <map>
#include <memory>

#include "backends/tables.h"
#include "layer.h"

namespace ladder {

using namespace deltaring;

// The rows of a call: the checkpoint of each stands at kSlot, and so does its first token.
Rows rows_of(const Verify& p) {
  std::vector<int32_t> start;
  for (int b = 0; b <= p.B; b++) start.push_back(b * T);
  const std::vector<int64_t> first(static_cast<size_t>(p.B), kSlot);
  const auto upload = [](const auto& values) {
    std::remove_cvref_t<decltype(values[0])>* array = nullptr;
    ok(cudaMalloc(&array, values.size() * sizeof *array), "cudaMalloc");
    ok(cudaMemcpy(array, values.data(), values.size() * sizeof *array, cudaMemcpyHostToDevice), "cudaMemcpy");
    return array;
  };
  const int64_t* at = upload(first);
  return {.count = p.B, .longest = T, .start = upload(start), .seat = p.seat, .first = at, .folded = at, .fold_to = at};
}

void launch(const Verify& p, cudaStream_t stream) {
  static std::map<const uint16_t*, Rows> known;  // made before any capture
  if (!known.contains(p.qkv)) known[p.qkv] = rows_of(p);
  const OpTable& ops = backend("cuda");
  const auto heads = [&](int first, int64_t count) {
    return View<3>{const_cast<uint16_t*>(p.qkv) + first * D, DType::bf16, {p.B * T, count, D}, {kTokenHeads * D, D, 1}};
  };
  ops.gdn_verify({.rows = known[p.qkv],
                  .q = heads(0, Hk),
                  .k = heads(Hk, Hk),
                  .v = heads(2 * Hk, Hv),
                  .g = dense<3>(const_cast<uint16_t*>(p.a), DType::bf16, {p.B * T, Hv, 1}),
                  .beta = dense<2>(const_cast<uint16_t*>(p.b), DType::bf16, {p.B * T, Hv}),
                  .gates = {.A_log = p.A_log, .dt_bias = p.dt_bias},
                  .state = {.checkpoint = dense<4>(p.state, DType::bf16, {p.B, Hv, D, D}),
                            .record_k = dense<4>(p.record_k, DType::bf16, {p.B, Hk, R, D}),
                            .record_v = dense<4>(p.record_v, DType::bf16, {p.B, Hv, R, D}),
                            .record_g = dense<4>(p.record_g, DType::f32, {p.B, Hv, R, 1}),
                            .record_beta = dense<3>(p.record_beta, DType::f32, {p.B, Hv, R})},
                  .grain = 8,
                  .out = dense<3>(p.out, p.wide ? DType::f32 : DType::bf16, {p.B * T, Hv, D})},
                 *ops.wrap_stream(stream));
}

}  // namespace ladder

int main(int argc, char** argv) { return ladder::run("6 library", ladder::launch, argc, argv); }
