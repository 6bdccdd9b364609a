#include "ops/sample.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace deltaring {

namespace {

void check_logits(const char* op, const View<2>& logits, int64_t valid) {
  const auto [rows, vocab] = logits.shape;
  check(logits.dtype == DType::f32, "{}: logits [rows, vocab] is {}, want float32", op, name_of(logits.dtype));
  check(rows >= 0 && vocab >= 1 && vocab <= std::numeric_limits<int32_t>::max(),
        "{}: logits [rows, vocab] is [{}, {}], want vocab in [1, 2^31)", op, rows, vocab);
  check(logits.stride[1] == 1, "{}: vocab of logits must be contiguous, its stride is {}", op, logits.stride[1]);
  check(logits.data || rows == 0, "{}: logits [rows, vocab] is null", op);
  check(valid >= 1 && valid <= vocab, "{}: valid is {}, want [1, vocab = {}]", op, valid, vocab);
}

}  // namespace

void check(const SamplingParams& p) {
  check(p.temperature >= 0 && std::isfinite(p.temperature), "temperature is {}, want >= 0 and finite, for example 0.7",
        p.temperature);
  check(p.top_k >= 0, "top_k is {}, want >= 0 (0 switches it off), for example 20", p.top_k);
  check(p.top_p > 0 && p.top_p <= 1, "top_p is {}, want (0, 1] (1 switches it off), for example 0.95", p.top_p);
  check(p.min_p >= 0 && p.min_p <= 1, "min_p is {}, want [0, 1] (0 switches it off), for example 0.05", p.min_p);
}

void check(const ArgmaxArgs& a) {
  check_logits("argmax", a.logits, a.valid);
  check(a.out || a.logits.shape[0] == 0, "argmax: out [rows] is null");
}

void check(const ProbabilitiesArgs& a) {
  const auto [rows, vocab] = a.logits.shape;
  check_logits("probabilities", a.logits, a.valid);
  check(a.out.dtype == DType::f32, "probabilities: out [rows, vocab] is {}, want float32", name_of(a.out.dtype));
  check(a.out.shape == a.logits.shape, "probabilities: out [rows, vocab] is [{}, {}], want [{}, {}]", a.out.shape[0],
        a.out.shape[1], rows, vocab);
  check(a.out.stride[1] == 1, "probabilities: vocab of out must be contiguous, its stride is {}", a.out.stride[1]);
  check((a.out.data && a.params) || rows == 0, "probabilities: out [rows, vocab] and params [rows] must be given");
  for (int64_t r = 0; r < rows; r++) {
    check(a.params[r]);
    check(a.params[r].temperature > 0, "probabilities: temperature of row {} is 0; take argmax for greedy rows", r);
  }
}

}  // namespace deltaring
