// What every function of the C ABI is made of: no exception leaves, and an op runs on the stream it is given.
#pragma once
#include <memory>
#include <mutex>
#include <string>

#include "base/error.h"
#include "capi/tensor.h"
#include "deltaring/deltaring.h"
#include "ops/table.h"

struct deltaring_stream {
  const deltaring::OpTable* ops;
  std::unique_ptr<deltaring::Stream> stream;
  DLDevice device;  // where its tensors lie
  std::mutex busy;  // a Stream has one caller at a time
};

namespace deltaring::capi {

// Keeps the text for deltaring_last_error and returns the status of the exception that is being handled.
int caught() noexcept;

template <class Body>
int guarded(const Body& body) noexcept {
  try {
    body();
    return DELTARING_OK;
  } catch (...) {
    return caught();
  }
}

// Reads the contract's arguments from the tensors of a call, then runs the op of the stream's backend.
template <class Args, class Call>
int run(const char* op, void (*OpTable::*entry)(const Args&, Stream&), const Call* call, deltaring_stream* stream,
        Args (*read)(const Call&, const Tensors&)) noexcept {
  return guarded([&] {
    check(call, "{}: args is null", op);
    check(stream, "{}: stream is null; deltaring_stream_create makes one", op);
    const auto compute = stream->ops->*entry;
    if (!compute) fail(ErrorKind::unsupported, "{}: the {} backend cannot; cpu works", op, stream->ops->name);
    const Args args = read(*call, Tensors(op, stream->device));
    const std::lock_guard lock(stream->busy);
    compute(args, *stream->stream);
  });
}

FoldPolicy policy_of(int32_t policy);  // throws Error(invalid_argument)

}  // namespace deltaring::capi
