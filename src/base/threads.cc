#include "base/threads.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace deltaring {

namespace {
constexpr int kSpins = 4096;  // about 20 us: longer than the gap between two loops of a decode step

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

struct ThreadPool::Shared {
  std::vector<std::thread> workers;
  std::atomic<uint32_t> epoch{0};  // counts loops; workers wait for it to move
  std::atomic<int> busy{0};        // workers that have not left the current loop
  std::atomic<int64_t> next{0};    // first index nobody has taken
  std::atomic<bool> stop{false};
  int64_t count = 0;
  Call call = nullptr;
  const void* context = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        call(context, i);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }

  void worker_main() {
    uint32_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && epoch.load(std::memory_order_acquire) == seen; spin++) pause();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      work();
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : shared_(std::make_unique<Shared>()) {
  check(threads >= 0 && threads <= 1024, "threads is {}; 0 (one per core) to 1024 work, for example 0", threads);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < threads; i++) shared_->workers.emplace_back([shared = shared_.get()] { shared->worker_main(); });
}

ThreadPool::~ThreadPool() {
  shared_->stop = true;
  shared_->epoch.fetch_add(1, std::memory_order_release);
  shared_->epoch.notify_all();
  for (std::thread& worker : shared_->workers) worker.join();
}

int ThreadPool::size() const { return static_cast<int>(shared_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, Call call, const void* context) {
  Shared& s = *shared_;
  s.count = count, s.call = call, s.context = context;
  s.next.store(0, std::memory_order_relaxed);
  const bool alone = count <= 1 || s.workers.empty();
  if (!alone) {
    s.busy.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
    s.epoch.fetch_add(1, std::memory_order_release);
    s.epoch.notify_all();
  }
  s.work();
  if (!alone) {
    for (int spin = 0, left; (left = s.busy.load(std::memory_order_acquire)) != 0; spin++) {
      if (spin < kSpins)
        pause();
      else
        s.busy.wait(left, std::memory_order_acquire);
    }
  }
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace deltaring
