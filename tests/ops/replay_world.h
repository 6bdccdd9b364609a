// Requests decoded plainly: one token a step, alone, in one thread, judged by the float64 oracle on the way. Every
// schedule must have the bits of this.
#pragma once
#include <map>

#include "ops/replay_layer.h"
#include "ops/replay_oracle.h"

namespace deltaring::replay {

struct Truth {
  Request request;
  std::vector<float> conv, g, beta, out;  // [length, C], [length, Hv, G], [length, Hv], [length, Hv, V]
  std::vector<double> tolerance, slack;   // [length, Hv, V] around the oracle; where no bits are promised
  std::map<int64_t, std::vector<std::byte>> checkpoint;  // by the position it stands at
  std::vector<std::byte> record[kPools];                 // [length, heads, width] as a ring shall hold them
};

// A subject, a shape, and requests that it decoded plainly. `failures` holds what the oracle had to say about them.
class World {
 public:
  const Subject subject;
  const Shape shape;
  const Parameters weights;
  const int64_t length;  // tokens of each request
  std::vector<Truth> requests;
  Failures failures;

  World(const Subject& subject, const Shape& shape, int64_t requests_, int64_t length, int64_t first_request = 0)
      : subject(subject), shape(shape), weights(shape), length(length) {
    for (int64_t i = 0; i < requests_ && failures.empty(); i++) decode(first_request + i);
  }
  // The same requests under another subject: a mutant whose plain decoding stays sound.
  World(const World& world, const Subject& other)
      : subject(other),
        shape(world.shape),
        weights(world.weights),
        length(world.length),
        requests(world.requests),
        failures(world.failures) {}
  World(const World&) = delete;

  // Whether the exact rule promises the bits of plain decoding.
  bool exact() const { return shape.on_grid() || (shape.checkpoint == DType::f32 && subject.f32_state); }

 private:
  void decode(int64_t id) {
    requests.push_back({.request = Request(shape, weights, id, length),
                        .conv = {},
                        .g = {},
                        .beta = {},
                        .out = {},
                        .tolerance = {},
                        .slack = {},
                        .checkpoint = {},
                        .record = {}});
    Truth& truth = requests.back();
    Layer layer(subject, shape, weights, 1, default_ring_rows(1, shape.F, shape.fold_policy()), 1, 1);
    layer.clear(0);
    DeltaRule oracle(shape);
    Cursor cursor{};
    keep_checkpoint(truth, oracle, layer, 0, 0);
    for (int64_t p = 0; p < length && failures.empty(); p++) {
      const int64_t fold_to = shape.snapshots() ? p : plan_fold(cursor, shape.F, shape.policy);
      const Row row{.seat = 0,
                    .request = &truth.request,
                    .cursor = cursor,
                    .fold_to = fold_to,
                    .token = p,
                    .length = 1,
                    .genuine = 1};
      const Result r = layer.run({row}, shape.snapshots(), failures);
      cursor = {.folded = shape.snapshots() ? p + 1 : fold_to, .pos = p + 1};
      if (!shape.snapshots()) keep_checkpoint(truth, oracle, layer, fold_to, p);
      judge_inputs(truth.request, p, r);
      judge_outputs(truth, oracle, p, r);
      if (shape.snapshots()) keep_checkpoint(truth, oracle, layer, p + 1, p + 1);
      append(truth, p, r);
    }
  }

  // The checkpoint now stands at `at`, the oracle at `p`.
  void keep_checkpoint(Truth& truth, DeltaRule& oracle, const Layer& layer, int64_t at, int64_t p) {
    if (truth.checkpoint.contains(at)) return;
    const auto stored = layer.pools().block(kCheckpoint, 0);
    truth.checkpoint[at].assign(stored.begin(), stored.end());
    if (at == p && !oracle.compare(stored.data()))
      failures.push_back(fmt::format("the checkpoint at {} is not the oracle's state", p));
  }

  void judge_inputs(const Request& request, int64_t p, const Result& r) {
    const int64_t C = shape.channels(), G = shape.G;
    for (int64_t c = 0; c < C; c++) {
      const Expected y = expected_conv(&weights.weight[c * shape.taps], shape.taps, [&](int64_t j) {
        const int64_t from = p - (shape.taps - 1) + j;
        return from < 0 ? 0.0f : request.x[from * C + c];
      });
      if (!near(r.conv.row(0)[c], y))
        return failures.push_back(fmt::format("conv of channel {} at position {} is {}, oracle {} +- {}", c, p,
                                              r.conv.row(0)[c], y.value, y.tolerance));
    }
    for (int64_t i = 0; i < shape.Hv * G; i++) {
      const Expected g = expected_g(weights.A_log[i / G], weights.dt_bias[i], request.a[p * shape.Hv * G + i]);
      const Expected beta = expected_beta(request.b[p * shape.Hv + i / G]);
      if (!near(r.g.row(0)[i], g) || !near(r.beta.row(0)[i / G], beta))
        return failures.push_back(
            fmt::format("gates of channel {} at position {} are g {}, beta {}, oracle {} +- {}, {} +- {}", i, p,
                        r.g.row(0)[i], r.beta.row(0)[i / G], g.value, g.tolerance, beta.value, beta.tolerance));
    }
  }

  void judge_outputs(Truth& truth, DeltaRule& oracle, int64_t p, const Result& r) {
    std::vector<Expected> want(shape.Hv * shape.V);
    const float* qkv = r.conv.row(0);
    oracle.step({.q = qkv,
                 .k = qkv + shape.Hk * shape.K,
                 .v = qkv + 2 * shape.Hk * shape.K,
                 .g = r.g.row(0),
                 .beta = r.beta.row(0)},
                want.data());
    for (int64_t i = 0; i < shape.Hv * shape.V; i++) {
      truth.tolerance.push_back(want[i].tolerance);
      truth.slack.push_back(oracle.rounded_each_step(i) + want[i].tolerance);
      if (failures.empty() && !near(r.out.row(0)[i], want[i]))
        failures.push_back(fmt::format("output {} at position {} is {}, oracle {} +- {}", i, p, r.out.row(0)[i],
                                       want[i].value, want[i].tolerance));
    }
  }

  // What the rings shall hold of a token: raw conv inputs, k and v rounded to the record dtype, exact gates.
  void append(Truth& truth, int64_t p, const Result& r) const {
    const auto store = [&](int pool, DType t, const float* from, int64_t count) {
      std::vector<std::byte>& to = truth.record[pool];
      const size_t end = to.size();
      to.resize(end + count * size_of(t));
      store_floats(&to[end], t, 0, count, from);
    };
    const int64_t keys = shape.Hk * shape.K, values = shape.Hv * shape.V;
    store(kRecordK, shape.record, r.conv.row(0) + keys, keys);
    store(kRecordV, shape.record, r.conv.row(0) + 2 * keys, values);
    store(kRecordG, DType::f32, r.g.row(0), shape.Hv * shape.G);
    store(kRecordBeta, DType::f32, r.beta.row(0), shape.Hv);
    store(kConv, DType::f32, &truth.request.x[p * shape.channels()], shape.channels());
    const auto add = [](std::vector<float>& to, const Matrix& m) {
      to.insert(to.end(), m.row(0), m.row(0) + m.columns());
    };
    add(truth.conv, r.conv), add(truth.g, r.g), add(truth.beta, r.beta), add(truth.out, r.out);
  }
};

}  // namespace deltaring::replay
