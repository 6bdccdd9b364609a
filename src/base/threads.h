// A fixed set of worker threads that run one parallel loop at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace deltaring {

class ThreadPool {
 public:
  // threads counts the caller; 0 means one per available core. Throws Error when threads < 0 or > 1024.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // body(i) for every i in [0, count), each exactly once, on any thread; returns when all are done. An exception of a
  // body is rethrown here after the loop. Which thread runs an index must not influence a result. Not reentrant.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) {
    run(
        count, [](const void* context, int64_t i) { (*static_cast<const Body*>(context))(i); }, &body);
  }

 private:
  using Call = void (*)(const void* context, int64_t index);
  void run(int64_t count, Call call, const void* context);

  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace deltaring
