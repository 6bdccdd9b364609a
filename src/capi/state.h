// The pools of a layer, as more than one file of the C ABI reads them.
#pragma once
#include "capi/tensor.h"
#include "deltaring/deltaring.h"
#include "ops/gdn.h"

namespace deltaring::capi {

inline GdnState state_of(const deltaring_gdn_state& state, const Tensors& in) {
  return {.checkpoint = in.view<4>("checkpoint [seats, Hv, V, K]", state.checkpoint),
          .record_k = in.view<4>("record_k [seats, Hk, R, K]", state.record_k),
          .record_v = in.view<4>("record_v [seats, Hv, R, V]", state.record_v),
          .record_g = in.view<4>("record_g [seats, Hv, R, G]", state.record_g),
          .record_beta = in.view<3>("record_beta [seats, Hv, R]", state.record_beta)};
}

}  // namespace deltaring::capi
