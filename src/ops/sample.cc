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

void check(const Penalties& p) {
  check(p.repetition > 0 && std::isfinite(p.repetition),
        "repetition_penalty is {}, want > 0 and finite (1 switches it off), for example 1.1", p.repetition);
  check(p.presence >= -2 && p.presence <= 2,
        "presence_penalty is {}, want [-2, 2] (0 switches it off), for example 0.5", p.presence);
  check(p.frequency >= -2 && p.frequency <= 2,
        "frequency_penalty is {}, want [-2, 2] (0 switches it off), for example 0.5", p.frequency);
}

void check(const TokenBias& b, int64_t valid) {
  check(b.id >= 0 && b.id < valid, "logit_bias names token {}, ids are [0, {})", b.id, valid);
  check(b.bias >= -100 && b.bias <= 100, "logit_bias of token {} is {}, want [-100, 100], for example -100", b.id,
        b.bias);
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

void check(const PenaltiesArgs& a) {
  const int64_t rows = a.logits.shape[0];
  check_logits("penalties", a.logits, a.valid);
  check_output("penalties", "out [rows, vocab]", a.out, DType::f32, a.logits.shape);
  check(a.penalties);
  check(static_cast<int64_t>(a.drafts.size()) + 1 == rows, "penalties: {} drafts for {} rows, want rows - 1",
        a.drafts.size(), rows);
  for (const TokenCount& c : a.counts) {
    check(c.id >= 0 && c.id < a.valid && c.output >= 0, "penalties: token {} counted {} times, want ids [0, {})", c.id,
          c.output, a.valid);
  }
  for (const int32_t id : a.drafts) check(id >= 0 && id < a.valid, "penalties: draft {}, ids are [0, {})", id, a.valid);
  for (const TokenBias& b : a.bias) check(b, a.valid);
}

void check(const LogProbabilitiesArgs& a) {
  const int64_t rows = a.logits.shape[0];
  check_logits("log_probabilities", a.logits, a.valid);
  check((a.ids && a.out) || rows == 0, "log_probabilities: ids [rows] or out [rows] is null");
  check(a.top >= 0 && a.top <= a.valid, "log_probabilities: top is {}, want [0, valid = {}]", a.top, a.valid);
  check((a.top_ids && a.top_out) || rows == 0 || a.top == 0,
        "log_probabilities: top_ids or top_out [rows, top] is null");
  for (int64_t r = 0; r < rows; r++) {
    check(a.ids[r] >= 0 && a.ids[r] < a.valid, "log_probabilities: id of row {} is {}, want [0, {})", r, a.ids[r],
          a.valid);
  }
}

}  // namespace deltaring
