// The layer of Qwen3.8-27B as the verify on tensor cores is asked for it.
#pragma once
#include "backends/cuda/gdn/verify/config.h"

namespace deltaring::cuda {

inline VerifyDesc qwen(int64_t B, int64_t T, DType state = DType::bf16, bool exact = false) {
  return {.layers = 1,
          .B = B,
          .T = T,
          .Hk = 16,
          .Hv = 48,
          .K = 128,
          .V = 128,
          .G = 1,
          .R = T <= 8 ? 32 : 64,
          .F = 16,
          .tokens = DType::bf16,
          .records = DType::bf16,
          .state = state,
          .prefill = false,
          .exact = exact,
          .aligned = true};
}

}  // namespace deltaring::cuda
