#include "capi/call.h"

#include <new>
#include <string_view>

#include "backends/tables.h"
#include "ops/cursor.h"

namespace deltaring::capi {

namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return DELTARING_INVALID_ARGUMENT;
    case ErrorKind::unsupported:
      return DELTARING_UNSUPPORTED;
    case ErrorKind::out_of_memory:
      return DELTARING_OUT_OF_MEMORY;
    case ErrorKind::corrupt:
      return DELTARING_CORRUPT;
    default:
      return DELTARING_INTERNAL;
  }
}

const OpTable& backend_named(const char* name, const char* works) {
  check(name, "backend is null, want a name; {} works", works);
  std::string names;
  for (const OpTable* table : backends()) {
    if (table->name == std::string_view(name)) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  fail(ErrorKind::unsupported, "backend {}: this build has {}; {} works", name, names, works);
}

// The status, with the text unless even that finds no memory.
int keep(int status, const char* text) noexcept {
  try {
    last_error() = text;
  } catch (...) {
    last_error().clear();
  }
  return status;
}

RingOptions ring(int64_t T, int64_t F, int64_t R, int32_t policy) {
  return {.T = T, .F = F, .R = R, .policy = policy_of(policy)};
}

}  // namespace

int caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(status_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(DELTARING_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& error) {
    return keep(DELTARING_INTERNAL, error.what());
  } catch (...) {
    return keep(DELTARING_INTERNAL, "an unknown exception");
  }
}

FoldPolicy policy_of(int32_t policy) {
  check(policy == DELTARING_FOLD_GRID || policy == DELTARING_FOLD_EVERY, "policy is {}, want 0 (grid) or 1 (every)",
        policy);
  return policy == DELTARING_FOLD_GRID ? FoldPolicy::grid : FoldPolicy::every;
}

}  // namespace deltaring::capi

using namespace deltaring;
using deltaring::capi::guarded;

int deltaring_abi_version() { return DELTARING_ABI_VERSION; }

const char* deltaring_last_error() { return capi::last_error().c_str(); }

const char* deltaring_backend_name(int i) {
  const char* name = nullptr;
  guarded([&] {
    const auto tables = backends();
    if (i >= 0 && i < static_cast<int>(tables.size())) name = tables[i]->name;
  });
  return name;
}

int deltaring_stream_create(const char* name, int32_t threads, deltaring_stream** stream) {
  return guarded([&] {
    check(stream, "stream is null, want where to put the handle");
    *stream = nullptr;
    const OpTable& ops = capi::backend_named(name, "cpu");
    if (!ops.make_stream || ops.memory) {
      fail(ErrorKind::unsupported,
           "backend {}: no stream on the host; cpu works, and deltaring_stream_wrap for the caller's own on a device",
           name);
    }
    check(threads >= 0 && threads <= 1024, "threads is {}; 0 (one per core) to 1024 work, for example 0", threads);
    *stream = new deltaring_stream{.ops = &ops, .stream = ops.make_stream(threads), .device = {kDLCPU, 0}, .busy = {}};
  });
}

int deltaring_stream_wrap(const char* name, DLDevice device, void* native, deltaring_stream** stream) {
  return guarded([&] {
    check(stream, "stream is null, want where to put the handle");
    *stream = nullptr;
    const OpTable& ops = capi::backend_named(name, "cuda in a build with DELTARING_CUDA=ON");
    if (!ops.wrap_stream || capi::type_of(device) == kDLCPU) {
      fail(ErrorKind::unsupported, "backend {}: no streams of a caller on {}; deltaring_stream_create(\"cpu\") works",
           name, capi::name_of(device));
    }
    *stream = new deltaring_stream{.ops = &ops, .stream = ops.wrap_stream(native), .device = device, .busy = {}};
  });
}

void deltaring_stream_destroy(deltaring_stream* stream) { delete stream; }

int deltaring_plan_fold(int64_t pos, int64_t F, int32_t policy, int64_t* fold_to) {
  return guarded([&] {
    const RingOptions options = capi::ring(1, F, 0, policy);
    check_window(options);
    check(pos >= 0, "pos is {}, want >= 0", pos);
    check(fold_to, "fold_to is null, want where to put the position");
    *fold_to = plan_fold({.folded = 0, .pos = pos}, F, options.policy);
  });
}

int deltaring_default_ring_rows(int64_t T, int64_t F, int32_t policy, int64_t* R) {
  return guarded([&] {
    const RingOptions options = capi::ring(T, F, 0, policy);
    check_window(options);
    check(R, "R is null, want where to put the rows");
    *R = default_ring_rows(T, F, options.policy);
  });
}

int deltaring_check_ring(int64_t T, int64_t F, int64_t R, int32_t policy) {
  return guarded([&] { check_ring(capi::ring(T, F, R, policy)); });
}

int deltaring_conv_ring_rows(int64_t T, int64_t F, int64_t R, int32_t policy, int64_t taps, int64_t* Rc) {
  return guarded([&] {
    const RingOptions options = capi::ring(T, F, R, policy);
    check_ring(options);
    check(taps >= 1 && taps <= 1024, "taps is {}, want [1, 1024]; 4 works", taps);
    check(Rc, "Rc is null, want where to put the rows");
    *Rc = conv_ring_rows(options, taps);
  });
}
