// Every op of the project on one page. A backend is one table; null = this backend cannot, decided at load, never in a
// step.
#pragma once
#include <memory>

#include "ops/attention.h"
#include "ops/conv.h"
#include "ops/gdn.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/snapshot.h"

namespace deltaring {

// What a backend runs on: a thread pool, a device stream. One caller at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual int threads() const { return 1; }
};

struct OpTable {
  const char* name;
  std::unique_ptr<Stream> (*make_stream)(int threads);  // threads 0 = one per core
  void (*embedding)(const EmbeddingArgs&, Stream&);
  void (*linear)(const LinearArgs&, Stream&);
  void (*swiglu)(const SwigluArgs&, Stream&);
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
  void (*argmax)(const ArgmaxArgs&, Stream&);
  void (*probabilities)(const ProbabilitiesArgs&, Stream&);
};

}  // namespace deltaring
