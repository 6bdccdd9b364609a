/* deltaring.h in plain C, as a caller without Python or C++ sees it: one head, one window of two tokens. */
#include "deltaring/deltaring.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static DLTensor tensor(void* data, DLDataTypeCode code, uint8_t bits, int32_t ndim, int64_t* shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static int failed(const char* call, int status) {
  if (status != DELTARING_OK) fprintf(stderr, "%s: %d, %s\n", call, status, deltaring_last_error());
  return status != DELTARING_OK;
}

int main(void) {
  enum { T = 2, K = 4, V = 1, R = 16 };
  int64_t qk_shape[] = {T, 1, K}, v_shape[] = {T, 1, V}, beta_shape[] = {T, 1};
  int64_t state_shape[] = {1, 1, V, K}, k_shape[] = {1, 1, R, K}, g_shape[] = {1, 1, R, 1}, start_shape[] = {2},
          row[] = {1};
  float qk[T * K] = {1, 0, 0, 0, 1, 0, 0, 0}, v[T] = {2, 4}, g[T] = {0, 0}, beta[T] = {0.5f, 0.5f}, out[T] = {0, 0};
  float state[V * K] = {0}, record_k[R * K], record_v[R], record_g[R], record_beta[R];
  int32_t start[] = {0, T}, seat[] = {0}, kept[] = {1};
  int64_t first[] = {0}, folded[] = {0}, fold_to[] = {0};

  DLTensor t_qk = tensor(qk, kDLFloat, 32, 3, qk_shape), t_v = tensor(v, kDLFloat, 32, 3, v_shape);
  DLTensor t_g = tensor(g, kDLFloat, 32, 3, v_shape), t_beta = tensor(beta, kDLFloat, 32, 2, beta_shape);
  DLTensor t_out = tensor(out, kDLFloat, 32, 3, v_shape), t_state = tensor(state, kDLFloat, 32, 4, state_shape);
  DLTensor t_record_k = tensor(record_k, kDLFloat, 32, 4, k_shape),
           t_record_v = tensor(record_v, kDLFloat, 32, 4, g_shape);
  DLTensor t_record_g = tensor(record_g, kDLFloat, 32, 4, g_shape),
           t_record_beta = tensor(record_beta, kDLFloat, 32, 3, g_shape);
  DLTensor t_start = tensor(start, kDLInt, 32, 1, start_shape), t_seat = tensor(seat, kDLInt, 32, 1, row);
  DLTensor t_first = tensor(first, kDLInt, 64, 1, row), t_folded = tensor(folded, kDLInt, 64, 1, row);
  DLTensor t_fold_to = tensor(fold_to, kDLInt, 64, 1, row), t_kept = tensor(kept, kDLInt, 32, 1, row);

  deltaring_stream* stream = NULL;
  deltaring_rows rows = {
      .start = &t_start, .seat = &t_seat, .first = &t_first, .folded = &t_folded, .fold_to = &t_fold_to};
  deltaring_gdn_verify_args verify = {.rows = rows,
                                      .q = &t_qk,
                                      .k = &t_qk,
                                      .v = &t_v,
                                      .g = &t_g,
                                      .beta = &t_beta,
                                      .state = {&t_state, &t_record_k, &t_record_v, &t_record_g, &t_record_beta},
                                      .grain = 8,
                                      .out = &t_out};
  deltaring_commit_args commit = {.rows = rows, .kept = &t_kept, .F = 8};

  if (deltaring_abi_version() != DELTARING_ABI_VERSION) return 1;
  if (failed("stream", deltaring_stream_create("cpu", 1, &stream))) return 1;
  if (failed("verify", deltaring_gdn_verify(&verify, stream))) return 1;
  if (failed("commit", deltaring_commit(&commit, stream))) return 1;
  deltaring_stream_destroy(stream);
  /* S = 0: d = 1, o = 1/2; then d = (4 - 1) / 2, S = 2.5, o = 1.25. */
  if (fabsf(out[0] - 0.5f) > 1e-5f || fabsf(out[1] - 1.25f) > 1e-5f || first[0] != 1) {
    fprintf(stderr, "out %g %g, pos %lld\n", (double)out[0], (double)out[1], (long long)first[0]);
    return 1;
  }
  return 0;
}
