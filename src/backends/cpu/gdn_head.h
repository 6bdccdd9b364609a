// One value head of one row on its way from a stored state through tokens: cuts into segments are the caller's, what is
// prepared of them and when it is executed is decided here.
#pragma once
#include <cstdint>
#include <span>

#include "backends/cpu/gdn_run.h"
#include "hwy/aligned_allocator.h"
#include "ops/gdn.h"

namespace deltaring::cpu {

// Memory of one thread, kept between calls.
class GdnScratch {
 public:
  // Throws Error(out_of_memory).
  float* need(int64_t floats);
  static GdnScratch& of_this_thread();

 private:
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  int64_t size_ = 0;
};

// Rounds x [n] to the dtype of `to` [n].
void store_rounded(const float* x, const View<1>& to);

class GdnHead {
 public:
  // `from` [V, K] is where the state comes from, and its dtype the one to round to. scale 0 = K^-1/2.
  GdnHead(const View<2>& from, int64_t G, DType record, QkNorm norm, float scale, GdnScratch& scratch);

  // A segment of `count` <= kSegment tokens, of which the first `records` have no output. Its tokens follow in order;
  // what they point to is read no later than in finish.
  void open(int64_t count, int64_t records);
  void add(const GdnToken& token) { segments_[segment_count_ - 1].tokens[added_++] = token; }
  // The state is needed behind the open segment: for tokens that follow, or to be stored.
  void leave(bool round, const View<2>& store);
  // Executes what is left, and brings closer what the thread will need next. Afterwards the head is at its end.
  void finish(std::span<const GdnAhead> ahead) { run(false, ahead); }

 private:
  static constexpr int64_t kTokens = 32;  // prepared at a time: with a tile of rows of S they fit the first-level cache

  void run(bool keep, std::span<const GdnAhead> ahead);

  const View<2> from_;
  GdnPlan plan_;
  int64_t tokens_ = 0, segment_count_ = 0;  // prepared, those of the open segment included
  int64_t added_ = 0;                       // tokens of the open segment that are there
  bool fresh_ = true;                       // nothing has been executed yet
  float *S_, *x_, *w_, *e_, *to_, *on_, *A_, *P_, *v_, *temporary_;
  GdnToken token_[kTokens];
  GdnSegment segments_[kTokens];
};

}  // namespace deltaring::cpu
