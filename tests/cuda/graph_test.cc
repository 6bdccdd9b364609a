// Ops under stream capture: a step recorded once and replayed must be the steps that are called one by one, since
// nothing about rows is decided on the host.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "ops/replay_layer.h"

namespace deltaring::replay {
namespace {

constexpr Shape kShape{.Hk = 2,
                       .Hv = 6,
                       .K = 128,
                       .V = 128,
                       .checkpoint = DType::bf16,
                       .record = DType::bf16,
                       .F = 16,
                       .tokens = DType::bf16,
                       .out = DType::bf16,
                       .fused = true};
constexpr int32_t T = 4, kRows = 3;
constexpr int64_t kSeats = 4, R = 32, kStepsOfTheTest = 24;

void ok(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

// A layer's memory, and a step on it: conv -> verify -> commit -> a copy of the first row's seat to one of nobody.
class Step {
 public:
  explicit Step(const OpTable& table) : table_(table), device_(table) {
    const Parameters weights(kShape);
    std::memset(pools_.block(0, 0).data(), 0, pools_.copy().size());
    std::ranges::copy(weights.weight, floats(weights_.data()));
    std::ranges::copy(weights.A_log, floats(weights_.data()) + weights.weight.size());
    std::ranges::copy(weights.dt_bias, floats(weights_.data()) + weights.weight.size() + weights.A_log.size());
    for (int32_t b = 0; b < kRows; b++) rows_.add(b == 1 ? -1 : 3 - b, {0, 0}, 0, T, 0);
    reinterpret_cast<int32_t*>(pair_.data())[0] = 3, reinterpret_cast<int32_t*>(pair_.data())[1] = 0;
    rows_.push(), weights_.push(), pair_.push(), pools_.begin();
  }

  // What step i is given: its tokens, and how many of them were accepted.
  void feed(int64_t i) {
    for (const Matrix* m : {&x_, &a_, &b_}) {
      std::vector<float> row(m->columns());
      for (int64_t t = 0; t < m->rows(); t++) {
        for (int64_t c = 0; c < m->columns(); c++) row[c] = uniform(i, m->columns(), t, c);
        m->set_row(t, row.data());
      }
      m->push();
    }
    for (int32_t b = 0; b < kRows; b++)
      reinterpret_cast<int32_t*>(kept_.data())[b] = static_cast<int32_t>((i + b) % (T + 1));
    kept_.push();
  }

  void run(Stream& stream) const {
    const Shape& s = kShape;
    const int64_t C = s.channels();
    float* weights = floats(weights_.device());
    const Rows rows = rows_.device();
    table_.conv({.rows = rows,
                 .x = x_.view(),
                 .weight = dense<2>(weights, DType::f32, {C, s.taps}),
                 .ring = pools_.view<3>(kConv, {R, C}),
                 .out = qkv_.view()},
                stream);
    table_.gdn_verify({.rows = rows,
                       .q = qkv_.heads(0, s.Hk, s.K),
                       .k = qkv_.heads(s.Hk * s.K, s.Hk, s.K),
                       .v = qkv_.heads(2 * s.Hk * s.K, s.Hv, s.V),
                       .g = a_.heads(0, s.Hv, 1),
                       .beta = b_.view(),
                       .gates = {.A_log = weights + C * s.taps, .dt_bias = weights + C * s.taps + s.Hv},
                       .state = {.checkpoint = pools_.view<4>(kCheckpoint, {s.Hv, s.V, s.K}),
                                 .record_k = pools_.view<4>(kRecordK, {s.Hk, R, s.K}),
                                 .record_v = pools_.view<4>(kRecordV, {s.Hv, R, s.V}),
                                 .record_g = pools_.view<4>(kRecordG, {s.Hv, R, 1}),
                                 .record_beta = pools_.view<3>(kRecordBeta, {s.Hv, R})},
                       .grain = s.F,
                       .out = out_.heads(0, s.Hv, s.V),
                       .bit_exact = true},
                      stream);
    table_.commit({.count = kRows,
                   .seat = rows.seat,
                   .kept = reinterpret_cast<int32_t*>(kept_.device()),
                   .first = const_cast<int64_t*>(rows.first),
                   .folded = const_cast<int64_t*>(rows.folded),
                   .fold_to = const_cast<int64_t*>(rows.fold_to),
                   .F = s.F},
                  stream);
    std::vector<SeatTensor> tensors;
    for (int pool = 0; pool < pools_.count(); pool++) {
      const PoolShape& shape = pools_.shape(pool);
      tensors.push_back(seat_tensor(pools_.view<4>(pool, {shape.heads, shape.slots, shape.width})));
    }
    const auto* pair = reinterpret_cast<const int32_t*>(pair_.device());
    table_.seat_copy({.tensors = tensors, .count = 1, .from = pair, .to = pair + 1}, stream);
  }

  // Everything that a step leaves behind.
  std::vector<std::byte> left() const {
    pools_.pull(), out_.pull(), rows_.pull();
    std::vector<std::byte> all = pools_.copy(), out = out_.copy();
    all.insert(all.end(), out.begin(), out.end());
    for (int32_t b = 0; b < kRows; b++)
      all.push_back(std::byte(rows_.rows().first[b])), all.push_back(std::byte(rows_.rows().folded[b]));
    return all;
  }
  int64_t pos(int32_t b) const { return rows_.rows().first[b]; }
  bool copied() const { return std::ranges::equal(pools_.block(kCheckpoint, 3), pools_.block(kCheckpoint, 0)); }

 private:
  static float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

  const OpTable& table_;
  Device device_;
  Pools pools_{device_,
               {{"checkpoint", kShape.checkpoint, kShape.Hv, kShape.V, kShape.K},
                {"record_k", kShape.record, kShape.Hk, R, kShape.K},
                {"record_v", kShape.record, kShape.Hv, R, kShape.V},
                {"record_g", DType::f32, kShape.Hv, R, 1},
                {"record_beta", DType::f32, kShape.Hv, R, 1},
                {"conv ring", kShape.tokens, 1, R, kShape.channels()}},
               kSeats};
  Matrix x_{device_, kRows*T, kShape.channels(), kShape.tokens},
      qkv_{device_, kRows*T, kShape.channels(), kShape.tokens}, a_{device_, kRows*T, kShape.Hv, kShape.tokens},
      b_{device_, kRows*T, kShape.Hv, kShape.tokens}, out_{device_, kRows*T, kShape.Hv*kShape.V, kShape.out};
  Buffer weights_{device_, (kShape.channels() * kShape.taps + 2 * kShape.Hv) * sizeof(float)},
      kept_{device_, kRows * sizeof(int32_t)}, pair_{device_, 2 * sizeof(int32_t)};
  RowArrays rows_{device_, kRows};
};

class Graph : public testing::TestWithParam<const OpTable*> {};

TEST_P(Graph, ReplaysAStepAsOftenAsOneLikes) {
  cudaStream_t native = nullptr;
  ok(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking));
  {
    const std::unique_ptr<Stream> own = GetParam()->make_stream(1), foreign = GetParam()->wrap_stream(native);
    Step called(*GetParam()), recorded(*GetParam());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ok(cudaStreamBeginCapture(native, cudaStreamCaptureModeGlobal));
    recorded.run(*foreign);
    ok(cudaStreamEndCapture(native, &graph));
    ok(cudaGraphInstantiate(&executable, graph, 0));
    for (int64_t i = 0; i < kStepsOfTheTest; i++) {
      called.feed(i), recorded.feed(i);
      called.run(*own);
      ok(cudaGraphLaunch(executable, native));
      ASSERT_EQ(called.left(), recorded.left()) << "step " << i;
      ASSERT_TRUE(recorded.copied()) << "step " << i;
    }
    EXPECT_GT(called.pos(0), 2 * kShape.F);  // folds were due
    ok(cudaGraphExecDestroy(executable));
    ok(cudaGraphDestroy(graph));
  }
  ok(cudaStreamDestroy(native));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Graph);
INSTANTIATE_TEST_SUITE_P(, Graph, testing::ValuesIn(on_device(backends())),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
