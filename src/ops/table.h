// Every op of the project on one page. A backend is one table; null = this backend cannot, decided at load, never in a
// step.
#pragma once
#include <memory>

#include "ops/attention.h"
#include "ops/commit.h"
#include "ops/contenders.h"
#include "ops/conv.h"
#include "ops/gdn.h"
#include "ops/linear.h"
#include "ops/linear_i4.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/seats.h"
#include "ops/snapshot.h"

namespace deltaring {

// What a backend runs on: a thread pool, a device stream. One caller at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual int threads() const { return 1; }
};

// Memory that is not the host's. Everything that an op of the backend is given lies in it: tensors, weights, rows.
// Throws Error(out_of_memory) naming the bytes.
struct Memory {
  void* (*allocate)(size_t bytes);  // aligned to 256
  void (*free)(void* memory);       // throws nothing
  // From and to the host, behind everything that was launched before; done on return. Not during a capture.
  void (*write)(void* to, const void* from, size_t bytes);
  void (*read)(void* to, const void* from, size_t bytes);
  // `rows` pieces of `width` bytes, `pitch` bytes from one to the next on both sides: a seat in all layers at once.
  // Goes with the stream, as an op does.
  void (*copy)(void* to, const void* from, size_t width, size_t pitch, size_t rows, Stream&);
  void (*wait)(Stream&);  // returns when everything that was launched on the stream has run
};

struct OpTable {
  const char* name;
  const Memory* memory;                                 // null: the backend computes in the host's memory
  std::unique_ptr<Stream> (*make_stream)(int threads);  // threads 0 = one per core
  // Around a stream of the caller's that outlives it, a cudaStream_t for example, in capture too: then what is launched
  // becomes part of the graph, since no op allocates, waits or looks into rows. Null where there is no such thing.
  std::unique_ptr<Stream> (*wrap_stream)(void* native);
  void (*embedding)(const EmbeddingArgs&, Stream&);
  void (*linear)(const LinearArgs&, Stream&);
  void (*linear_i4)(const LinearI4Args&, Stream&);
  void (*contenders)(const ContendersArgs&, Stream&);
  void (*swiglu)(const SwigluArgs&, Stream&);
  void (*moe_route)(const MoeRouteArgs&, Stream&);
  void (*moe_experts)(const MoeExpertsArgs&, Stream&);
  void (*rms_norm)(const RmsNormArgs&, Stream&);
  void (*gated_rms_norm)(const GatedRmsNormArgs&, Stream&);
  void (*rope)(const RopeArgs&, Stream&);
  void (*kv_append)(const KvAppendArgs&, Stream&);
  void (*attention)(const AttentionArgs&, Stream&);
  void (*conv)(const ConvArgs&, Stream&);
  void (*gdn_gates)(const GdnGatesArgs&, Stream&);
  void (*gdn_verify)(const GdnVerifyArgs&, Stream&);
  void (*gdn_prefill)(const GdnVerifyArgs&, Stream&);
  void (*gdn_fold)(const GdnFoldArgs&, Stream&);
  void (*snapshot_verify)(const SnapshotVerifyArgs&, Stream&);
  void (*snapshot_commit)(const SnapshotCommitArgs&, Stream&);
  void (*commit)(const CommitArgs&, Stream&);
  void (*seat_copy)(const SeatCopyArgs&, Stream&);
  void (*seat_pack)(const SeatPackArgs&, Stream&);
  void (*seat_unpack)(const SeatPackArgs&, Stream&);
  void (*argmax)(const ArgmaxArgs&, Stream&);
  void (*probabilities)(const ProbabilitiesArgs&, Stream&);
  void (*penalties)(const PenaltiesArgs&, Stream&);
  void (*log_probabilities)(const LogProbabilitiesArgs&, Stream&);
};

}  // namespace deltaring
