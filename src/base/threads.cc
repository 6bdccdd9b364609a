#include "base/threads.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace deltaring {

namespace {

constexpr int kSpins = 4096;  // about 20 us: longer than the gap between two loops of a decode step
constexpr uint64_t kClosed = 0xffffffffu;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spins, then sleeps, until the atomic is no longer `old`.
template <class T>
void wait_while(std::atomic<T>& value, T old) {
  for (int spin = 0; spin < kSpins; spin++) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

// A loop ends when its indices are done, whether or not every worker woke up for it. A worker that comes late must not
// take an index of the next loop with this loop's body, so one word holds the loop's number and its next index: taking
// an index fails once the number has moved on, and the body is only read behind a successful take, when the loop cannot
// end before that index is done.
struct ThreadPool::Shared {
  std::vector<std::thread> workers;
  std::atomic<uint64_t> ticket{kClosed};  // loop number << 32 | next index, or kClosed while the loop is being set up
  std::atomic<uint32_t> loop{0};          // what workers sleep on
  std::atomic<uint32_t> count{0}, done{0};
  std::atomic<bool> stop{false};
  Call call = nullptr;
  const void* context = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  void join() {
    stop = true;
    loop.fetch_add(1, std::memory_order_release);
    loop.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  bool take(uint32_t number, uint32_t& index) {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    do {
      index = static_cast<uint32_t>(seen);
      if (seen >> 32 != number || index >= count.load(std::memory_order_acquire)) return false;
    } while (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    return true;
  }

  void work(uint32_t number) {
    for (uint32_t index; take(number, index);) {
      try {
        call(context, index);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
      const uint32_t all = count.load(std::memory_order_relaxed);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == all) done.notify_one();
    }
  }

  void worker_main() {
    uint32_t number = 0;
    while (true) {
      wait_while(loop, number);
      number = loop.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      work(number);
    }
  }
};

ThreadPool::ThreadPool(int threads) : shared_(std::make_unique<Shared>()) {
  check(threads >= 0 && threads <= 1024, "threads is {}; 0 (one per core) to 1024 work, for example 0", threads);
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  try {
    for (int i = 1; i < threads; i++)
      shared_->workers.emplace_back([shared = shared_.get()] { shared->worker_main(); });
  } catch (const std::system_error& error) {
    const int started = size();
    shared_->join();
    fail(ErrorKind::out_of_memory, "--threads {}: only {} threads could be started ({}); {} works", threads, started,
         error.code().message(), 1);
  } catch (...) {  // a thread that nobody joins ends the process
    shared_->join();
    throw;
  }
}

ThreadPool::~ThreadPool() { shared_->join(); }

int ThreadPool::size() const { return static_cast<int>(shared_->workers.size()) + 1; }

void ThreadPool::run(int64_t count, Call call, const void* context) {
  Shared& s = *shared_;
  if (count <= 0) return;
  check(count < static_cast<int64_t>(kClosed), "a loop of {} indices; {} at most", count, kClosed - 1);
  const uint32_t number = s.loop.load(std::memory_order_relaxed) + 1;
  s.ticket.store(uint64_t{number} << 32 | kClosed, std::memory_order_release);
  s.call = call, s.context = context;
  s.count.store(static_cast<uint32_t>(count), std::memory_order_release);
  s.done.store(0, std::memory_order_relaxed);
  s.ticket.store(uint64_t{number} << 32, std::memory_order_release);
  s.loop.store(number, std::memory_order_release);
  if (count > 1) s.loop.notify_all();  // a single index is not worth a wake-up
  s.work(number);
  for (uint32_t done; (done = s.done.load(std::memory_order_acquire)) != count;) wait_while(s.done, done);
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace deltaring
