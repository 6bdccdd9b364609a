#include "ops/linear.h"

#include "base/error.h"

namespace deltaring {

namespace {

void check_f32(const char* name, const View<2>& view) {
  check(view.dtype == DType::f32, "{} is {}, want float32", name, name_of(view.dtype));
}

void check_shape(const char* name, const View<2>& view, int64_t rows, int64_t cols) {
  check(view.shape[0] == rows && view.shape[1] == cols, "{} has shape [{}, {}], want [{}, {}]", name, view.shape[0],
        view.shape[1], rows, cols);
}

// Rows may lie anywhere, their elements side by side. A view without elements needs no memory.
void check_memory(const char* name, const View<2>& view) {
  if (view.shape[0] == 0 || view.shape[1] == 0) return;
  check(view.data != nullptr, "{} of shape [{}, {}] is null", name, view.shape[0], view.shape[1]);
  check(view.stride[1] == 1 || view.shape[1] == 1, "{} has stride {} in its last dimension, want 1", name,
        view.stride[1]);
}

void check_output(const char* name, const View<2>& view) {
  check_f32(name, view);
  check_memory(name, view);
  check(view.shape[0] <= 1 || view.stride[0] >= view.shape[1] || view.stride[0] <= -view.shape[1],
        "{} has overlapping rows: stride {} for {} columns, want at least {}", name, view.stride[0], view.shape[1],
        view.shape[1]);
}

}  // namespace

void check(const LinearArgs& args) {
  const int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.w.shape[0];
  check(M >= 0 && N >= 0 && K >= 1, "linear: M = {}, N = {}, K = {}; want M >= 0, N >= 0, K >= 1", M, N, K);
  check_f32("linear: x [M, K]", args.x);
  check_shape("linear: w [N, K]", args.w, N, K);
  check_shape("linear: out [M, N]", args.out, M, N);
  check_memory("linear: x [M, K]", args.x);
  check_memory("linear: w [N, K]", args.w);
  check_output("linear: out [M, N]", args.out);
}

void check(const EmbeddingArgs& args) {
  const int64_t tokens = args.out.shape[0], vocab = args.table.shape[0], H = args.table.shape[1];
  check(tokens >= 0 && vocab >= 1 && H >= 1,
        "embedding: tokens = {}, vocab = {}, H = {}; want tokens >= 0, the others >= 1", tokens, vocab, H);
  check(tokens == 0 || args.ids != nullptr, "embedding: ids [tokens] of {} tokens is null", tokens);
  check_shape("embedding: out [tokens, H]", args.out, tokens, H);
  check_memory("embedding: table [vocab, H]", args.table);
  check_output("embedding: out [tokens, H]", args.out);
}

void check(const SwigluArgs& args) {
  const int64_t tokens = args.out.shape[0], I = args.out.shape[1];
  check(tokens >= 0 && I >= 1, "swiglu: tokens = {}, I = {}; want tokens >= 0, I >= 1", tokens, I);
  check_f32("swiglu: gate [tokens, I]", args.gate);
  check_f32("swiglu: up [tokens, I]", args.up);
  check_shape("swiglu: gate [tokens, I]", args.gate, tokens, I);
  check_shape("swiglu: up [tokens, I]", args.up, tokens, I);
  check_memory("swiglu: gate [tokens, I]", args.gate);
  check_memory("swiglu: up [tokens, I]", args.up);
  check_output("swiglu: out [tokens, I]", args.out);
}

}  // namespace deltaring
