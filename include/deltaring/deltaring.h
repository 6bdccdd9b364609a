/* deltaring in C: the ops of the replay ring over DLPack tensors. The fields, shapes and meanings are those of
 * src/ops/gdn.h, conv.h, snapshot.h, rows.h and cursor.h, where the math stands.
 *
 * What can fail returns a deltaring_status; deltaring_last_error() then says what was asked, what is possible and a
 * value that works. Nothing is printed, no environment is read, no exception leaves, and where the arguments are at
 * fault nothing has been written. A struct begins as zeros, {0}: what is 0 or NULL there is left out or takes its
 * default.
 *
 * Tensors: strides NULL = row-major, byte_offset counts, the last dimension is contiguous unless said otherwise. The
 * caller keeps memory and descriptors; a call on host memory is done when it returns, one on a device is in the stream.
 * All tensors of a call, those of the rows too, lie on the device of its stream. Floats are float32, bfloat16 or
 * float16 where the comment says float, else as it says. Symbols: seats, B rows, tokens of all rows together, Hk and Hv
 * key and value heads, K and V their dims, G gate channels a head (1 or K), R ring rows.
 */
#pragma once
#include <dlpack/dlpack.h>
#include <stdint.h>

#define DELTARING_API __attribute__((visibility("default")))
#define DELTARING_ABI_VERSION 1 /* of the structs below; deltaring_abi_version() is the library's */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  DELTARING_OK = 0,
  DELTARING_INVALID_ARGUMENT = 1, /* impossible */
  DELTARING_UNSUPPORTED = 2,      /* possible elsewhere, not in this build or on this device */
  DELTARING_OUT_OF_MEMORY = 3,
  DELTARING_INTERNAL = 4,
  DELTARING_CORRUPT = 5, /* bytes that are damaged, or no exported seat */
} deltaring_status;

typedef enum { DELTARING_QK_NORM_L2 = 0, DELTARING_QK_NORM_NONE = 1 } deltaring_qk_norm;
typedef enum { DELTARING_FOLD_GRID = 0, DELTARING_FOLD_EVERY = 1 } deltaring_fold_policy;

DELTARING_API int deltaring_abi_version(void);

/* The text of this thread's last error, "" before the first; valid until the next call that fails on this thread. */
DELTARING_API const char* deltaring_last_error(void);

/* The name of backend number i of this build, NULL behind the last. */
DELTARING_API const char* deltaring_backend_name(int i);

/* What calls run on: threads of the host, or a queue of a device. Calls on one stream wait for each other. */
typedef struct deltaring_stream deltaring_stream;

/* A stream of a backend that computes in host memory: "cpu", or "reference" (double precision, slow). threads counts
 * the caller; 0 = one per core. */
DELTARING_API int deltaring_stream_create(const char* backend, int32_t threads, deltaring_stream** stream);

/* The caller's own queue of a device: backend "cuda", {kDLCUDA, 0} and a cudaStream_t (NULL = the default one). That
 * device is the current one here and in every call. The queue outlives the handle; calls are launched on it, in capture
 * too, and not waited for. */
DELTARING_API int deltaring_stream_wrap(const char* backend, DLDevice device, void* native, deltaring_stream** stream);

/* NULL is fine. */
DELTARING_API void deltaring_stream_destroy(deltaring_stream* stream);

/* Row b owns tokens [start[b], start[b+1]) at positions first[b], first[b]+1, ...; seat -1 = no seat: nothing is read
 * or written for it, its outputs are zeros. Contiguous. On a device, where the host cannot look into them, a row whose
 * numbers are impossible is taken for one without a seat. */
typedef struct {
  const DLTensor* start;   /* [B+1] int32, ascending from 0 */
  const DLTensor* seat;    /* [B] int32, no seat twice */
  const DLTensor* first;   /* [B] int64: the cursor's pos */
  const DLTensor* folded;  /* [B] int64: the cursor's folded; gdn only */
  const DLTensor* fold_to; /* [B] int64: where the checkpoint shall stand afterwards; gdn only */
  const DLTensor* order;   /* [B] int32 or NULL: the turns in which rows are begun, a permutation. No result depends on
                              it; with those that have most to do first, as deltaring_commit leaves it, large batches
                              end sooner */
  int32_t longest;         /* at least the tokens of every row; 0 = all tokens. Launches on a device are sized by it */
} deltaring_rows;

/* One layer's share of the pools. */
typedef struct {
  const DLTensor* checkpoint;  /* [seats, Hv, V, K] float */
  const DLTensor* record_k;    /* [seats, Hk, R, K] float, the record dtype */
  const DLTensor* record_v;    /* [seats, Hv, R, V] the record dtype */
  const DLTensor* record_g;    /* [seats, Hv, R, G] float32 */
  const DLTensor* record_beta; /* [seats, Hv, R] float32 */
} deltaring_gdn_state;

typedef struct {
  const DLTensor* a;       /* [tokens, Hv, G] float32 */
  const DLTensor* b;       /* [tokens, Hv] float32 */
  const DLTensor* A_log;   /* [Hv] float32, contiguous */
  const DLTensor* dt_bias; /* [Hv, G] float32, contiguous */
  const DLTensor* g;       /* out [tokens, Hv, G] float32 */
  const DLTensor* beta;    /* out [tokens, Hv] float32 */
} deltaring_gdn_gates_args;

typedef struct {
  deltaring_rows rows;
  const DLTensor *q, *k;   /* [tokens, Hk, K] float */
  const DLTensor* v;       /* [tokens, Hv, V] of the dtype of q and k */
  const DLTensor* g;       /* [tokens, Hv, G] float32; with A_log raw a, float */
  const DLTensor* beta;    /* [tokens, Hv] float32; with A_log raw b, of the dtype of a */
  const DLTensor* A_log;   /* [Hv] float32, contiguous, or NULL: g and beta are given as they are used */
  const DLTensor* dt_bias; /* [Hv, G] float32, contiguous, with A_log */
  deltaring_gdn_state state;
  int64_t grain;       /* F, 8 or 16; 0 = off the grid */
  int32_t norm;        /* deltaring_qk_norm */
  float scale;         /* of q; 0 = K^-1/2 */
  const DLTensor* out; /* [tokens, Hv, V] float */
  int32_t bit_exact;   /* not 0: asks a device for the exact rule behind a grid point too; the host obeys it anyway */
} deltaring_gdn_verify_args;

typedef struct {
  deltaring_rows rows;       /* start unused */
  deltaring_gdn_state state; /* the first dimension of each tensor is layers x seats, one layer behind the other */
  int64_t grain;
  int32_t norm;
  int64_t layers; /* every row is folded in each; 0 = 1 */
} deltaring_gdn_fold_args;

typedef struct {
  deltaring_rows rows;    /* folded, fold_to unused */
  const DLTensor* x;      /* [tokens, C] float */
  const DLTensor* weight; /* [C, taps] float32, any strides; tap taps-1 multiplies the current token */
  const DLTensor* ring;   /* [seats, Rc, C] float32 or the dtype of x; Rc >= taps-1 */
  const DLTensor* out;    /* [tokens, C] float */
} deltaring_conv_args;

typedef struct {
  deltaring_rows rows;                                    /* folded, fold_to unused */
  const DLTensor *q, *k, *v, *g, *beta, *A_log, *dt_bias; /* as in deltaring_gdn_verify_args */
  const DLTensor* state;                                  /* [seats, Hv, V, K] float */
  const DLTensor* snapshots; /* [seats, slots, Hv, V, K] of the state's dtype, or NULL: every token is accepted */
  int32_t norm;
  float scale;
  const DLTensor* out; /* [tokens, Hv, V] float */
} deltaring_snapshot_verify_args;

typedef struct {
  deltaring_rows rows;       /* seat alone */
  const DLTensor* kept;      /* [B] int32, contiguous: acc, in [0, slots]; 0 leaves the state */
  const DLTensor* state;     /* as above */
  const DLTensor* snapshots; /* as above, not NULL */
} deltaring_snapshot_commit_args;

typedef struct {
  deltaring_rows rows;  /* seat; first, folded and fold_to are moved, order is written; start unused */
  const DLTensor* kept; /* [B] int32, contiguous: acc, anchor + accepted drafts, or 0 when the row is cancelled */
  int64_t F;            /* fold grain, 8 or 16 */
  int32_t policy;       /* deltaring_fold_policy */
} deltaring_commit_args;

typedef struct {
  const DLTensor* const* tensors; /* [count] of any dtype and rank: [seats, ...], dense within a seat */
  int32_t count;
  const DLTensor* from; /* [pairs] int32, contiguous: the seat that is copied; -1 leaves the pair out */
  const DLTensor* to;   /* [pairs] int32, contiguous: the seat that becomes it, likewise */
} deltaring_seat_copy_args;

/* A seat in all layers of the caller's pools. Layers are alike in shapes and dtypes, tensors dense within a seat. */
typedef struct {
  const deltaring_gdn_state* layers; /* [count] */
  const DLTensor* const* conv;       /* [count] rings of deltaring_conv, or NULL: no convolution */
  int32_t count;
  int32_t seat;
  int64_t taps;  /* of the convolution; unused without */
  int64_t grain; /* F, 8 or 16; 0 = off the grid */
} deltaring_seat;

/* g and beta from raw gates a and b, for every token. */
DELTARING_API int deltaring_gdn_gates(const deltaring_gdn_gates_args* args, deltaring_stream* stream);

/* Outputs of every token from checkpoint + records + window; stores records and, where due, the checkpoint. Moves no
 * cursor. verify: fold_to <= first, R >= (first - folded) + length. prefill: every token is accepted, so fold_to may
 * lie inside the row. */
DELTARING_API int deltaring_gdn_verify(const deltaring_gdn_verify_args* args, deltaring_stream* stream);
DELTARING_API int deltaring_gdn_prefill(const deltaring_gdn_verify_args* args, deltaring_stream* stream);

/* Replays records [folded, fold_to) into the checkpoint. Moves no cursor. */
DELTARING_API int deltaring_gdn_fold(const deltaring_gdn_fold_args* args, deltaring_stream* stream);

/* Moves the cursors of all rows with a seat, once a step for all layers: folded = fold_to, first += kept, and fold_to
 * becomes what is due next. Rejected tokens need nothing. */
DELTARING_API int deltaring_commit(const deltaring_commit_args* args, deltaring_stream* stream);

/* Depthwise causal convolution, then SiLU, over a ring of raw inputs. */
DELTARING_API int deltaring_conv(const deltaring_conv_args* args, deltaring_stream* stream);

/* Rollback by whole states, the baseline: one snapshot a window token, and the copy of the accepted one. */
DELTARING_API int deltaring_snapshot_verify(const deltaring_snapshot_verify_args* args, deltaring_stream* stream);
DELTARING_API int deltaring_snapshot_commit(const deltaring_snapshot_commit_args* args, deltaring_stream* stream);

/* For every pair the seat `to` becomes the seat `from`, byte for byte in every tensor; no seat is written by two pairs
 * or read by one and written by another. On a device one launch for up to 1000 tensors, and pairs with impossible seats
 * are left out. */
DELTARING_API int deltaring_seat_copy(const deltaring_seat_copy_args* args, deltaring_stream* stream);

/* A seat as a file: a header (version, shapes, dtypes, cursor), the bytes that a request at that cursor can still read,
 * a checksum. The bytes of it; writing it; reading it back into any seat of pools with these shapes, dtypes and grain,
 * whatever their number of seats and ring length. `file` [bytes] uint8 is contiguous and lies in the host's memory or
 * on the device of the stream. Done on return; not during a capture. An import checks everything before it writes, also
 * that the records and a window of T tokens fit the ring. Then *folded and *pos are the cursor. */
DELTARING_API int deltaring_seat_export_bytes(const deltaring_seat* seat, int64_t folded, int64_t pos,
                                              deltaring_stream* stream, int64_t* bytes);
DELTARING_API int deltaring_seat_export(const deltaring_seat* seat, int64_t folded, int64_t pos, const DLTensor* file,
                                        deltaring_stream* stream);
DELTARING_API int deltaring_seat_import(const deltaring_seat* seat, int64_t T, const DLTensor* file,
                                        deltaring_stream* stream, int64_t* folded, int64_t* pos);

/* Up to where the records [folded, pos) are due: the last multiple of F up to pos under grid, pos under every. F 8 or
 * 16. */
DELTARING_API int deltaring_plan_fold(int64_t pos, int64_t F, int32_t policy, int64_t* fold_to);

/* The smallest ring for windows of T tokens, anchor included: T in [1, 256], F 8 or 16. */
DELTARING_API int deltaring_default_ring_rows(int64_t T, int64_t F, int32_t policy, int64_t* R);

/* Whether a ring of R rows serves; and the rows of a conv ring beside it. */
DELTARING_API int deltaring_check_ring(int64_t T, int64_t F, int64_t R, int32_t policy);
DELTARING_API int deltaring_conv_ring_rows(int64_t T, int64_t F, int64_t R, int32_t policy, int64_t taps, int64_t* Rc);

#ifdef __cplusplus
}
#endif
