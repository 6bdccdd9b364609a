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
      const Token token = token_of(r, layer, p);
      judge_inputs(truth.request, p, token);
      judge_outputs(truth, oracle, p, token);
      if (shape.snapshots()) keep_checkpoint(truth, oracle, layer, p + 1, p + 1);
      append(truth, p, token);
    }
  }

  // What the layer made of one token. Gates that a verify makes itself show in its records alone.
  struct Token {
    std::vector<float> conv, g, beta, out;
  };
  Token token_of(const Result& r, const Layer& layer, int64_t p) const {
    Token token{r.conv.values(0), r.g.values(0), r.beta.values(0), r.out.values(0)};
    for (int64_t h = 0; h < shape.Hv && shape.fused; h++) {
      const auto g = layer.pools().record(kRecordG, 0, h, p), beta = layer.pools().record(kRecordBeta, 0, h, p);
      std::memcpy(&token.g[h * shape.G], g.data(), g.size());
      std::memcpy(&token.beta[h], beta.data(), beta.size());
    }
    return token;
  }

  // The checkpoint now stands at `at`, the oracle at `p`.
  void keep_checkpoint(Truth& truth, DeltaRule& oracle, const Layer& layer, int64_t at, int64_t p) {
    if (truth.checkpoint.contains(at)) return;
    const auto stored = layer.pools().block(kCheckpoint, 0);
    truth.checkpoint[at].assign(stored.begin(), stored.end());
    if (at == p && !oracle.compare(stored.data()))
      failures.push_back(fmt::format("the checkpoint at {} is not the oracle's state", p));
  }

  void judge_inputs(const Request& request, int64_t p, const Token& token) {
    const int64_t C = shape.channels(), G = shape.G;
    for (int64_t c = 0; c < C; c++) {
      const Expected exact = expected_conv(&weights.weight[c * shape.taps], shape.taps, [&](int64_t j) {
        const int64_t from = p - (shape.taps - 1) + j;
        return from < 0 ? 0.0f : request.x[from * C + c];
      });
      const Expected y = stored_as(shape.tokens, exact);
      if (!near(token.conv[c], y))
        return failures.push_back(fmt::format("conv of channel {} at position {} is {}, oracle {} +- {}", c, p,
                                              token.conv[c], y.value, y.tolerance));
    }
    for (int64_t i = 0; i < shape.Hv * G; i++) {
      const Expected g = expected_g(weights.A_log[i / G], weights.dt_bias[i], request.a[p * shape.Hv * G + i]);
      const Expected beta = expected_beta(request.b[p * shape.Hv + i / G]);
      if (!near(token.g[i], g) || !near(token.beta[i / G], beta))
        return failures.push_back(
            fmt::format("gates of channel {} at position {} are g {}, beta {}, oracle {} +- {}, {} +- {}", i, p,
                        token.g[i], token.beta[i / G], g.value, g.tolerance, beta.value, beta.tolerance));
    }
  }

  void judge_outputs(Truth& truth, DeltaRule& oracle, int64_t p, const Token& token) {
    std::vector<Expected> want(shape.Hv * shape.V);
    const float* qkv = token.conv.data();
    oracle.step({.q = qkv,
                 .k = qkv + shape.Hk * shape.K,
                 .v = qkv + 2 * shape.Hk * shape.K,
                 .g = token.g.data(),
                 .beta = token.beta.data()},
                want.data());
    for (int64_t i = 0; i < shape.Hv * shape.V; i++) {
      want[i] = stored_as(shape.out, want[i]);
      truth.tolerance.push_back(want[i].tolerance);
      const Expected either{want[i].value, oracle.rounded_each_step(i) + want[i].tolerance};
      truth.slack.push_back(stored_as(shape.out, either).tolerance);
      if (failures.empty() && !near(token.out[i], want[i]))
        failures.push_back(fmt::format("output {} at position {} is {}, oracle {} +- {}", i, p, token.out[i],
                                       want[i].value, want[i].tolerance));
    }
  }

  // What the rings shall hold of a token: raw conv inputs, k and v rounded to the record dtype, exact gates.
  void append(Truth& truth, int64_t p, const Token& token) const {
    const auto store = [&](int pool, DType t, const float* from, int64_t count) {
      std::vector<std::byte>& to = truth.record[pool];
      const size_t end = to.size();
      to.resize(end + count * size_of(t));
      store_floats(&to[end], t, 0, count, from);
    };
    const int64_t keys = shape.Hk * shape.K, values = shape.Hv * shape.V;
    store(kRecordK, shape.record, &token.conv[keys], keys);
    store(kRecordV, shape.record, &token.conv[2 * keys], values);
    store(kRecordG, DType::f32, token.g.data(), shape.Hv * shape.G);
    store(kRecordBeta, DType::f32, token.beta.data(), shape.Hv);
    store(kConv, shape.tokens, &truth.request.x[p * shape.channels()], shape.channels());
    const auto add = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    add(truth.conv, token.conv), add(truth.g, token.g), add(truth.beta, token.beta), add(truth.out, token.out);
  }
};

}  // namespace deltaring::replay
