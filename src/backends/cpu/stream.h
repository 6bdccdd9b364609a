// The cpu backend runs on a thread pool.
#pragma once
#include "base/threads.h"
#include "ops/table.h"

namespace deltaring::cpu {

class CpuStream : public Stream {
 public:
  explicit CpuStream(int threads) : pool(threads) {}
  int threads() const override { return pool.size(); }
  ThreadPool pool;
};

// The pool behind a stream that this backend made.
inline ThreadPool& pool_of(Stream& stream) { return static_cast<CpuStream&>(stream).pool; }

}  // namespace deltaring::cpu
