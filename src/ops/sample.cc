#include "ops/sample.h"

#include <cmath>
#include <limits>

#include "ops/check_view.h"

namespace deltaring {

namespace {

void check_logits(const char* op, const View<2>& logits, int64_t valid) {
  constexpr int64_t kMaxVocab = std::numeric_limits<int32_t>::max();
  const int64_t vocab = logits.shape[1];
  check_view(op, "logits [rows, vocab]", logits, DType::f32, logits.shape);
  check(vocab <= kMaxVocab, "{}: logits [rows, vocab] has {} in vocab, want <= {}", op, vocab, kMaxVocab);
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
  const int64_t rows = a.logits.shape[0];
  check_logits("probabilities", a.logits, a.valid);
  check_output("probabilities", "out [rows, vocab]", a.out, DType::f32, a.logits.shape);
  check(a.params || rows == 0, "probabilities: params [rows] is null");
  for (int64_t r = 0; r < rows; r++) {
    check(a.params[r]);
    check(a.params[r].temperature > 0, "probabilities: temperature of row {} is 0; take argmax for greedy rows", r);
  }
}

}  // namespace deltaring
