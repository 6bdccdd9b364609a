// The C ABI as its callers see it: tensors become views, whatever a descriptor holds is judged, errors are texts.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "capi/calls.h"

namespace deltaring::capi_testing {
namespace {

std::string last_error() { return deltaring_last_error(); }

TEST(Capi, EveryOpRuns) {
  for (const char* backend : {"cpu", "reference"}) {
    Stream stream(backend);
    for (const Op& op : ops()) {
      World world;
      EXPECT_EQ(op.call(world, stream.handle), DELTARING_OK) << op.name << ": " << last_error();
    }
  }
}

// The verify's mathematics is the business of the ops' tests; here: that each tensor arrives in its own place.
TEST(Capi, VerifyIsTheRecurrence) {
  Stream stream("reference");
  World w;
  for (const char* name : {"rows.first", "A_log", "dt_bias"}) std::memset(w.tensors[name].at<char>(), 0, 8);
  w.instead = {{"A_log", nullptr}, {"dt_bias", nullptr}};
  const deltaring_gdn_verify_args args = w.window();
  ASSERT_EQ(deltaring_gdn_verify(&args, stream.handle), DELTARING_OK) << last_error();
  const auto unit = [](const float* x, int64_t i) {
    double sum = 1e-6;
    for (int64_t j = 0; j < World::K; j++) sum += double{x[j]} * x[j];
    return x[i] / std::sqrt(sum);
  };
  for (int64_t h = 0; h < World::Hv; h++) {
    for (int64_t v = 0; v < World::V; v++) {
      double S[World::K] = {};
      for (int64_t t = 0; t < 3; t++) {  // the row in seat 1
        const float *q = w.tensors["q"].at<float>() + t * World::K, *k = w.tensors["k"].at<float>() + t * World::K;
        double Sk = 0, o = 0;
        for (int64_t i = 0; i < World::K; i++) {
          S[i] *= std::exp(double{w.tensors["g"].at<float>()[t * World::Hv + h]});
          Sk += S[i] * unit(k, i);
        }
        const int64_t at = (t * World::Hv + h) * World::V + v;
        const double d = w.tensors["beta"].at<float>()[t * World::Hv + h] * (w.tensors["v"].at<float>()[at] - Sk);
        for (int64_t i = 0; i < World::K; i++) {
          S[i] += d * unit(k, i);
          o += S[i] * unit(q, i) / std::sqrt(double{World::K});
        }
        EXPECT_NEAR(w.tensors["out"].at<float>()[at], o, 1e-6) << t << " " << h << " " << v;
      }
    }
  }
}

TEST(Capi, CommitMovesTheCursors) {
  Stream stream;
  World w;
  w.tensors["rows.first"].set<int64_t>({7, 5});
  const deltaring_commit_args args{w.rows(), w["kept"], 8, DELTARING_FOLD_GRID};
  ASSERT_EQ(deltaring_commit(&args, stream.handle), DELTARING_OK) << last_error();
  EXPECT_EQ(w.tensors["rows.first"].at<int64_t>()[0], 8);
  EXPECT_EQ(w.tensors["rows.fold_to"].at<int64_t>()[0], 8);
  EXPECT_EQ(w.tensors["rows.first"].at<int64_t>()[1], 7);
  EXPECT_EQ(w.tensors["rows.fold_to"].at<int64_t>()[1], 0);
}

// bfloat16 tokens, a byte offset, strides and pinned memory: the bits of dense float32 tensors with the same values.
TEST(Capi, OffsetsStridesAndDtypes) {
  Stream stream;
  World w;
  for (const char* name : {"q", "k", "v"}) {
    for (int64_t i = 0; i < w.tensors[name].count(); i++) {  // values that bfloat16 holds
      float& x = w.tensors[name].at<float>()[i];
      x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000u);
    }
  }
  World bf16, dense;
  std::vector<Owned> narrow;
  for (const char* name : {"q", "k", "v"}) {
    Owned& from = w.tensors[name];
    const int64_t *shape = from.get()->shape, row = shape[1] * shape[2];
    Owned& to = narrow.emplace_back(Owned({shape[0], shape[1], shape[2] + 3}, kBf16));  // padded, and 2 bytes off
    std::memcpy(dense.tensors[name].at<float>(), from.at<float>(), static_cast<size_t>(from.count()) * 4);
    for (int64_t i = 0; i < from.count(); i++) {
      const int64_t at = i / row * shape[1] * (shape[2] + 3) + i % row / shape[2] * (shape[2] + 3) + i % shape[2] + 1;
      to.at<uint16_t>()[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(from.at<float>()[i]) >> 16);
    }
  }
  std::vector<std::array<int64_t, 3>> strides(3);
  for (int i = 0; i < 3; i++) {
    const char* name = std::array{"q", "k", "v"}[i];
    DLTensor& tensor = *narrow[i].get();
    const int64_t *shape = w.tensors[name].get()->shape, pitch = shape[2] + 3;
    strides[i] = {shape[1] * pitch, pitch, 1};
    tensor.shape = w.tensors[name].get()->shape, tensor.strides = strides[i].data(), tensor.byte_offset = 2;
    tensor.device = {kDLCUDAHost, 0};
    bf16.instead[name] = &tensor;
  }
  const deltaring_gdn_verify_args some = bf16.window(), others = dense.window();
  ASSERT_EQ(deltaring_gdn_verify(&some, stream.handle), DELTARING_OK) << last_error();
  ASSERT_EQ(deltaring_gdn_verify(&others, stream.handle), DELTARING_OK) << last_error();
  for (const char* name : {"out", "record_k", "record_v"}) {
    Owned &a = bf16.tensors[name], &b = dense.tensors[name];
    EXPECT_EQ(std::memcmp(a.at<char>(), b.at<char>(), static_cast<size_t>(a.count()) * 4), 0) << name;
  }
}

struct Damage {
  const char* what;
  std::function<void(DLTensor&)> apply;
};

const std::vector<Damage>& damages() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(), kMin = std::numeric_limits<int64_t>::min();
  static const std::vector<Damage> all{
      {"no dimensions", [](DLTensor& t) { t.ndim = 0; }},
      {"a dimension less", [](DLTensor& t) { t.ndim--; }},
      {"a dimension more", [](DLTensor& t) { t.ndim++; }},
      {"-1 dimensions", [](DLTensor& t) { t.ndim = -1; }},
      {"no shape", [](DLTensor& t) { t.shape = nullptr; }},
      {"no memory", [](DLTensor& t) { t.data = nullptr; }},
      {"no memory, but an offset", [](DLTensor& t) { t.data = nullptr, t.byte_offset = 64; }},
      {"odd memory", [](DLTensor& t) { t.byte_offset = 1; }},
      {"float64", [](DLTensor& t) { t.dtype.bits = 64, t.dtype.code = kDLFloat; }},
      {"uint32", [](DLTensor& t) { t.dtype.bits = 32, t.dtype.code = kDLUInt; }},
      {"0 bits", [](DLTensor& t) { t.dtype.bits = 0; }},
      {"vectors", [](DLTensor& t) { t.dtype.lanes = 4; }},
      {"an unknown dtype", [](DLTensor& t) { t.dtype.code = 200; }},
      {"a GPU",
       [](DLTensor& t) {
         t.device = {kDLCUDA, 0};
       }},
      {"an unknown device",
       [](DLTensor& t) {
         t.device = {static_cast<DLDeviceType>(99), -5};
       }},
      {"a negative size", [](DLTensor& t) { t.shape[0] = -1; }},
      {"the least size", [=](DLTensor& t) { t.shape[t.ndim - 1] = kMin; }},
      {"the largest size", [=](DLTensor& t) { t.shape[0] = kMax; }},
      {"a larger inner size", [=](DLTensor& t) { t.shape[t.ndim - 1] = kMax / 2; }},
      {"one more inside", [=](DLTensor& t) { t.shape[t.ndim - 1]++; }},
      {"the largest stride", [=](DLTensor& t) { t.strides[0] = kMax; }},
      {"the least stride", [=](DLTensor& t) { t.strides[t.ndim - 1] = kMin; }},
  };
  return all;
}

// The tensor with damage done to a descriptor of its own, then the op.
int call_damaged(const Op& op, const std::string& name, const Damage& damage, deltaring_stream* stream) {
  World world;
  DLTensor tensor = *world[name];
  std::array<int64_t, 8> shape{}, strides{};
  std::copy_n(tensor.shape, tensor.ndim, shape.data());
  int64_t step = 1;
  for (int d = tensor.ndim - 1; d >= 0; d--) strides[d] = step, step *= shape[d];
  tensor.shape = shape.data(), tensor.strides = strides.data();
  damage.apply(tensor);
  world.instead[name] = &tensor;
  return op.call(world, stream);
}

// Where two tensors disagree about a size, the other one may be named.
TEST(Capi, EveryDamagedTensorIsRefusedByName) {
  Stream stream;
  for (const Op& op : ops()) {
    for (const std::string& name : op.tensors) {
      for (const Damage& damage : damages()) {
        World world;
        const DLTensor& whole = *world[name];
        const std::string what = damage.what, plain = name == "conv.out" ? "out" : name;
        const bool single = whole.shape[whole.ndim - 1] == 1;
        if (what == "one more inside" && name == "weight") continue;  // a fifth tap
        if (what == "the least stride" && single) continue;           // of one element
        EXPECT_NE(call_damaged(op, name, damage, stream.handle), DELTARING_OK)
            << op.name << ": " << name << ": " << what;
        const bool size = what.find("size") != std::string::npos || what == "one more inside";
        const std::string text = last_error();
        const bool named = text.find(plain) != std::string::npos;
        EXPECT_TRUE(named || (size && text.find("want") != std::string::npos))
            << op.name << ": " << name << ": " << what << ": " << text;
      }
    }
  }
}

TEST(Capi, MissingTensors) {
  Stream stream;
  for (const Op& op : ops()) {
    for (const std::string& name : op.tensors) {
      World world;
      world.instead[name] = nullptr;
      const int status = op.call(world, stream.handle);
      const bool optional = name == "snapshots" && std::string(op.name) == "snapshot_verify";
      EXPECT_EQ(status == DELTARING_OK, optional) << op.name << " without " << name;
      if (optional) continue;
      const std::string plain = name == "conv.out" ? "out" : name.substr(name.find('.') + 1);
      EXPECT_NE(last_error().find(plain), std::string::npos) << op.name << " without " << name << ": " << last_error();
    }
  }
}

TEST(Capi, ImpossibleValues) {
  Stream stream;
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<std::pair<const char*, std::function<void(World&)>>> worlds{
      {"rows.start[0] is 1",
       [](World& w) {
         w.tensors["rows.start"].set<int32_t>({1, 3, 5});
       }},
      {"rows.start descends",
       [](World& w) {
         w.tensors["rows.start"].set<int32_t>({0, 9, 5});
       }},
      {"rows hold 6 tokens",
       [](World& w) {
         w.tensors["rows.start"].set<int32_t>({0, 3, 6});
       }},
      {"rows.seat[0] is 2",
       [](World& w) {
         w.tensors["rows.seat"].set<int32_t>({2, 0});
       }},
      {"rows.seat[0] is -2",
       [](World& w) {
         w.tensors["rows.seat"].set<int32_t>({-2, 0});
       }},
      {"rows.seat holds 1 twice",
       [](World& w) {
         w.tensors["rows.seat"].set<int32_t>({1, 1});
       }},
      {"rows.first[1] is -1",
       [](World& w) {
         w.tensors["rows.first"].set<int64_t>({5, -1});
       }},
      {"records in a ring",
       [](World& w) {
         w.tensors["rows.first"].set<int64_t>({kFar, 5});
       }},
      {"rows.first[0] is 9223372036854775807, want >= 0 and at most 2^62",
       [](World& w) {
         w.tensors["rows.first"].set<int64_t>({std::numeric_limits<int64_t>::max(), 5});
       }},
      {"folded -8 is not in",
       [](World& w) {
         w.tensors["rows.folded"].set<int64_t>({-8, 0});
       }},
      {"multiples of the grain",
       [](World& w) {
         w.tensors["rows.folded"].set<int64_t>({3, 0});
       }},
      {"fold_to 8 is not in",
       [](World& w) {
         w.tensors["rows.fold_to"].set<int64_t>({8, 0});
       }},
  };
  for (const auto& [text, change] : worlds) {
    World world;
    change(world);
    if (std::string(text) == "multiples of the grain") world.tensors["rows.fold_to"].set<int64_t>({3, 0});
    const deltaring_gdn_verify_args args = world.window();
    EXPECT_EQ(deltaring_gdn_verify(&args, stream.handle), DELTARING_INVALID_ARGUMENT) << text;
    EXPECT_NE(last_error().find(text), std::string::npos) << text << ": " << last_error();
  }
}

TEST(Capi, Streams) {
  deltaring_stream* stream = reinterpret_cast<deltaring_stream*>(1);
  EXPECT_EQ(deltaring_stream_create("gpu", 1, &stream), DELTARING_UNSUPPORTED);
  EXPECT_EQ(stream, nullptr);
  EXPECT_NE(last_error().find("reference, cpu"), std::string::npos) << last_error();
  EXPECT_EQ(deltaring_stream_create(nullptr, 1, &stream), DELTARING_INVALID_ARGUMENT);
  for (const int32_t threads : {-1, 1025}) {
    EXPECT_EQ(deltaring_stream_create("reference", threads, &stream), DELTARING_INVALID_ARGUMENT) << threads;
  }
  EXPECT_EQ(deltaring_stream_create("cpu", 1, nullptr), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_stream_wrap("cpu", {kDLCUDA, 0}, nullptr, &stream), DELTARING_UNSUPPORTED);
  EXPECT_EQ(deltaring_stream_wrap("nothing", {kDLCPU, 0}, nullptr, &stream), DELTARING_UNSUPPORTED);
  deltaring_stream_destroy(nullptr);
  World world;
  for (const Op& op : ops()) {
    EXPECT_EQ(op.call(world, nullptr), DELTARING_INVALID_ARGUMENT) << op.name;
    EXPECT_NE(last_error().find("stream is null"), std::string::npos) << last_error();
  }
  EXPECT_EQ(deltaring_gdn_verify(nullptr, stream), DELTARING_INVALID_ARGUMENT);
  EXPECT_STREQ(deltaring_backend_name(0), "reference");
  EXPECT_EQ(deltaring_backend_name(-1), nullptr);
  EXPECT_EQ(deltaring_backend_name(1000), nullptr);
  EXPECT_EQ(deltaring_abi_version(), DELTARING_ABI_VERSION);
}

TEST(Capi, RingNumbers) {
  int64_t n = 0;
  EXPECT_EQ(deltaring_default_ring_rows(8, 8, DELTARING_FOLD_GRID, &n), DELTARING_OK);
  EXPECT_EQ(n, 32);
  EXPECT_EQ(deltaring_conv_ring_rows(16, 8, 16, DELTARING_FOLD_EVERY, 4, &n), DELTARING_OK);
  EXPECT_EQ(n, 32);
  EXPECT_EQ(deltaring_plan_fold(21, 8, DELTARING_FOLD_GRID, &n), DELTARING_OK);
  EXPECT_EQ(n, 16);
  EXPECT_EQ(deltaring_plan_fold(21, 8, DELTARING_FOLD_EVERY, &n), DELTARING_OK);
  EXPECT_EQ(n, 21);
  EXPECT_EQ(deltaring_check_ring(8, 8, 32, DELTARING_FOLD_GRID), DELTARING_OK);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t bad : {int64_t{-1}, int64_t{0}, kMost}) {
    EXPECT_EQ(deltaring_default_ring_rows(bad, 8, 0, &n), DELTARING_INVALID_ARGUMENT);
    EXPECT_EQ(deltaring_default_ring_rows(8, bad, 0, &n), DELTARING_INVALID_ARGUMENT);
    EXPECT_EQ(deltaring_plan_fold(8, bad, 0, &n), DELTARING_INVALID_ARGUMENT);
    EXPECT_EQ(deltaring_check_ring(8, 8, bad, 0), DELTARING_INVALID_ARGUMENT);
    EXPECT_EQ(deltaring_conv_ring_rows(4, 8, 16, 0, bad, &n), DELTARING_INVALID_ARGUMENT);
  }
  EXPECT_EQ(deltaring_plan_fold(-1, 8, 0, &n), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_plan_fold(8, 8, 2, &n), DELTARING_INVALID_ARGUMENT);
  EXPECT_EQ(deltaring_plan_fold(8, 8, 0, nullptr), DELTARING_INVALID_ARGUMENT);
}

TEST(Capi, ErrorsBelongToTheirThread) {
  deltaring_check_ring(0, 8, 16, 0);
  const std::string mine = last_error();
  std::thread([] {
    EXPECT_EQ(last_error(), "");
    deltaring_check_ring(8, 9, 16, 0);
    EXPECT_NE(last_error(), "");
  }).join();
  EXPECT_EQ(last_error(), mine);
}

TEST(Capi, OneStreamServesManyThreads) {
  Stream stream;
  std::vector<World> worlds(4);
  std::vector<std::thread> threads;
  for (World& world : worlds) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; i++) {
        const deltaring_gdn_verify_args args = world.window();
        ASSERT_EQ(deltaring_gdn_verify(&args, stream.handle), DELTARING_OK);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (World& world : worlds) {
    Owned &out = world.tensors["out"], &first = worlds[0].tensors["out"];
    EXPECT_EQ(std::memcmp(out.at<char>(), first.at<char>(), static_cast<size_t>(out.count()) * 4), 0);
  }
}

}  // namespace
}  // namespace deltaring::capi_testing
