// The C ABI as functions of apache-tvm-ffi, which turns whatever speaks DLPack into a DLTensor, releases Python's lock
// during a call, and knows the stream that the caller's framework works on. The docstrings are in python/deltaring.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "deltaring/deltaring.h"

namespace {

namespace ffi = tvm::ffi;

void succeed(int status) {
  if (status != DELTARING_OK) throw ffi::Error("DeltaringError", deltaring_last_error(), "");
}

// Impossible numbers stay impossible.
int32_t narrow(int64_t x) { return static_cast<int32_t>(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); }

struct Destroy {
  void operator()(deltaring_stream* stream) const { deltaring_stream_destroy(stream); }
};
using Handle = std::unique_ptr<deltaring_stream, Destroy>;

// Streams as they are needed: one of the host, with as many threads as were asked for, and one around each stream that
// a framework has worked on.
class StreamsObj : public ffi::Object {
 public:
  StreamsObj(std::string backend, int32_t threads) : backend_(std::move(backend)), threads_(threads) {
    if (!backend_.empty()) host();
  }
  ~StreamsObj() { leave_those_of_the_parent(); }

  deltaring_stream* on(DLDevice device) {
    const std::lock_guard lock(mutex_);
    leave_those_of_the_parent();
    if (!backend_.empty() || device.device_type != kDLCUDA) return host();
    void* native = TVMFFIEnvGetStream(device.device_type, device.device_id);
    Handle& stream = wrapped_[{device.device_id, native}];
    if (!stream) {
      deltaring_stream* made = nullptr;
      succeed(deltaring_stream_wrap("cuda", device, native, &made));
      stream.reset(made);
    }
    return stream.get();
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("deltaring.Streams", StreamsObj, ffi::Object);

 private:
  // The threads of a stream do not follow a fork, so that in the child it can be neither used nor ended.
  void leave_those_of_the_parent() {
    if (process_ == getpid()) return;
    process_ = getpid();
    static_cast<void>(host_.release());
    for (auto& [at, stream] : wrapped_) static_cast<void>(stream.release());
    wrapped_.clear();
  }

  deltaring_stream* host() {
    if (!host_) {
      deltaring_stream* made = nullptr;
      succeed(deltaring_stream_create(backend_.empty() ? "cpu" : backend_.c_str(), threads_, &made));
      host_.reset(made);
    }
    return host_.get();
  }

  const std::string backend_;  // "" follows the tensors
  const int32_t threads_;
  pid_t process_ = getpid();
  std::mutex mutex_;
  Handle host_;
  std::map<std::pair<int32_t, void*>, Handle> wrapped_;
};

class Streams : public ffi::ObjectRef {
 public:
  Streams(const std::string& backend, int32_t threads) : ObjectRef(ffi::make_object<StreamsObj>(backend, threads)) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(Streams, ffi::ObjectRef, StreamsObj);
};

// The arguments of a call: Streams first, then those of the C struct in its order, structs in it flattened.
class Arguments {
 public:
  Arguments(const ffi::AnyView* args, int32_t count) : next_(args + 1), end_(args + count) {
    if (count < 1) TVM_FFI_THROW(TypeError) << "no arguments";
    DLDevice device{kDLCPU, 0};
    for (const ffi::AnyView* any = next_; any < end_; any++) {
      const auto tensor = any->try_cast<DLTensor*>();
      if (tensor && (*tensor)->device.device_type == kDLCUDA) device = (*tensor)->device;
    }
    stream_ = args->cast<Streams>()->on(device);
  }

  deltaring_stream* stream() const { return stream_; }
  int64_t integer() { return next().cast<int64_t>(); }
  int32_t int32() { return narrow(integer()); }
  float real() { return static_cast<float>(next().cast<double>()); }
  const DLTensor* tensor() {  // None is null
    const ffi::AnyView any = next();
    return any == nullptr ? nullptr : any.cast<DLTensor*>();
  }
  std::vector<const DLTensor*> tensors() {  // how many, and they
    std::vector<const DLTensor*> all(static_cast<size_t>(std::max<int64_t>(0, integer())));
    for (const DLTensor*& one : all) one = tensor();
    return all;
  }
  deltaring_rows rows() { return {tensor(), tensor(), tensor(), tensor(), tensor(), tensor(), int32()}; }
  deltaring_gdn_state state() { return {tensor(), tensor(), tensor(), tensor(), tensor()}; }

 private:
  ffi::AnyView next() {
    if (next_ == end_) TVM_FFI_THROW(TypeError) << "too few arguments";
    return *next_++;
  }

  const ffi::AnyView *next_, *end_;
  deltaring_stream* stream_;
};

int gdn_gates(Arguments& in) {
  const deltaring_gdn_gates_args args{in.tensor(), in.tensor(), in.tensor(), in.tensor(), in.tensor(), in.tensor()};
  return deltaring_gdn_gates(&args, in.stream());
}

deltaring_gdn_verify_args window(Arguments& in) {
  return {in.rows(),   in.tensor(), in.tensor(),  in.tensor(), in.tensor(), in.tensor(), in.tensor(),
          in.tensor(), in.state(),  in.integer(), in.int32(),  in.real(),   in.tensor(), in.int32()};
}

int gdn_verify(Arguments& in) {
  const deltaring_gdn_verify_args args = window(in);
  return deltaring_gdn_verify(&args, in.stream());
}

int gdn_prefill(Arguments& in) {
  const deltaring_gdn_verify_args args = window(in);
  return deltaring_gdn_prefill(&args, in.stream());
}

int gdn_fold(Arguments& in) {
  const deltaring_gdn_fold_args args{in.rows(), in.state(), in.integer(), in.int32(), in.integer()};
  return deltaring_gdn_fold(&args, in.stream());
}

int commit(Arguments& in) {
  const deltaring_commit_args args{in.rows(), in.tensor(), in.integer(), in.int32()};
  return deltaring_commit(&args, in.stream());
}

int conv(Arguments& in) {
  const deltaring_conv_args args{in.rows(), in.tensor(), in.tensor(), in.tensor(), in.tensor()};
  return deltaring_conv(&args, in.stream());
}

int snapshot_verify(Arguments& in) {
  const deltaring_snapshot_verify_args args{in.rows(),   in.tensor(), in.tensor(), in.tensor(), in.tensor(),
                                            in.tensor(), in.tensor(), in.tensor(), in.tensor(), in.tensor(),
                                            in.int32(),  in.real(),   in.tensor()};
  return deltaring_snapshot_verify(&args, in.stream());
}

int snapshot_commit(Arguments& in) {
  const deltaring_snapshot_commit_args args{in.rows(), in.tensor(), in.tensor(), in.tensor()};
  return deltaring_snapshot_commit(&args, in.stream());
}

int seat_copy(Arguments& in) {
  const std::vector<const DLTensor*> tensors = in.tensors();
  const deltaring_seat_copy_args args{tensors.data(), narrow(static_cast<int64_t>(tensors.size())), in.tensor(),
                                      in.tensor()};
  return deltaring_seat_copy(&args, in.stream());
}

// A seat of layers of five tensors each, of conv rings or none.
class Seat {
 public:
  explicit Seat(Arguments& in) {
    const std::vector<const DLTensor*> states = in.tensors();
    for (size_t i = 0; i + 5 <= states.size(); i += 5)
      layers_.push_back({states[i], states[i + 1], states[i + 2], states[i + 3], states[i + 4]});
    conv_ = in.tensors();
    seat_ = {layers_.data(),
             conv_.empty() ? nullptr : conv_.data(),
             narrow(static_cast<int64_t>(layers_.size())),
             in.int32(),
             in.integer(),
             in.integer()};
  }
  Seat(const Seat&) = delete;
  const deltaring_seat* get() const { return &seat_; }

 private:
  std::vector<deltaring_gdn_state> layers_;
  std::vector<const DLTensor*> conv_;
  deltaring_seat seat_;
};

int seat_export(Arguments& in) {
  const Seat seat(in);
  const int64_t folded = in.integer(), pos = in.integer();
  return deltaring_seat_export(seat.get(), folded, pos, in.tensor(), in.stream());
}

int64_t seat_export_bytes(Arguments& in) {
  const Seat seat(in);
  const int64_t folded = in.integer(), pos = in.integer();
  int64_t bytes = 0;
  succeed(deltaring_seat_export_bytes(seat.get(), folded, pos, in.stream(), &bytes));
  return bytes;
}

ffi::Array<int64_t> seat_import(Arguments& in) {
  const Seat seat(in);
  const int64_t T = in.integer();
  int64_t folded = 0, pos = 0;
  succeed(deltaring_seat_import(seat.get(), T, in.tensor(), in.stream(), &folded, &pos));
  return {folded, pos};
}

ffi::Array<ffi::String> backends() {
  ffi::Array<ffi::String> names;
  for (int i = 0; const char* name = deltaring_backend_name(i); i++) names.push_back(name);
  return names;
}

int64_t default_ring_rows(int64_t T, int64_t F, int64_t policy) {
  int64_t R = 0;
  succeed(deltaring_default_ring_rows(T, F, narrow(policy), &R));
  return R;
}

int64_t conv_ring_rows(int64_t T, int64_t F, int64_t R, int64_t policy, int64_t taps) {
  int64_t Rc = 0;
  succeed(deltaring_conv_ring_rows(T, F, R, narrow(policy), taps, &Rc));
  return Rc;
}

void check_ring(int64_t T, int64_t F, int64_t R, int64_t policy) {
  succeed(deltaring_check_ring(T, F, R, narrow(policy)));
}

Streams streams(const ffi::String& backend, int64_t threads) { return Streams(backend, narrow(threads)); }

}  // namespace

// The symbol under which apache-tvm-ffi finds a function of Arguments: an op, or one that answers.
#define DELTARING_EXPORT(function, statement)                                                         \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##function(void*, const TVMFFIAny* args, int32_t count, \
                                                         [[maybe_unused]] TVMFFIAny* result) {        \
    TVM_FFI_SAFE_CALL_BEGIN();                                                                        \
    Arguments in(reinterpret_cast<const ffi::AnyView*>(args), count);                                 \
    statement;                                                                                        \
    TVM_FFI_SAFE_CALL_END();                                                                          \
  }
#define DELTARING_EXPORT_OP(op) DELTARING_EXPORT(op, succeed(op(in)))
#define DELTARING_EXPORT_ANSWER(function) \
  DELTARING_EXPORT(function, *reinterpret_cast<ffi::Any*>(result) = function(in))

DELTARING_EXPORT_OP(gdn_gates)
DELTARING_EXPORT_OP(gdn_verify)
DELTARING_EXPORT_OP(gdn_prefill)
DELTARING_EXPORT_OP(gdn_fold)
DELTARING_EXPORT_OP(commit)
DELTARING_EXPORT_OP(conv)
DELTARING_EXPORT_OP(snapshot_verify)
DELTARING_EXPORT_OP(snapshot_commit)
DELTARING_EXPORT_OP(seat_copy)
DELTARING_EXPORT_OP(seat_export)
DELTARING_EXPORT_ANSWER(seat_export_bytes)
DELTARING_EXPORT_ANSWER(seat_import)

TVM_FFI_DLL_EXPORT_TYPED_FUNC(backends, backends)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(streams, streams)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(default_ring_rows, default_ring_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(conv_ring_rows, conv_ring_rows)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(check_ring, check_ring)
