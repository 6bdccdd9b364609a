// The cases of single ops.
#include "cuda/run.h"

namespace deltaring::bench {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kLongestN = 16;  // records that a verify meets here

// For each state dtype and batch.
void for_states(const Run& run, const std::function<void(DType, int64_t)>& body) {
  for (const DType state : run.selection.states)
    for (const int64_t B : run.selection.batches) body(state, B);
}

ordered_json case_of(const char* op, const LayerShape& shape) {
  return {{"op", op}, {"state", name_of(shape.state)}, {"T", shape.T}, {"B", shape.B}};
}

std::vector<Launch> launches_of(Layers& layers, const std::function<Launch(Layer&)>& launch) {
  std::vector<Launch> all;
  for (Layer& layer : layers) all.push_back(launch(layer));
  return all;
}

struct Records {
  int64_t n, folds;  // records before the window, those of them that the checkpoint takes
  int64_t F;
  bool exact;
};

// n on both sides of a grid point; a due grain of either size; window rows behind a grid point under bit_exact.
std::vector<Records> verify_records(const Run& run, int64_t T) {
  if (run.selection.quick)
    return {{0, 0, 16, false}, {8, 0, 16, false}, {8, 8, 8, false}, {16, 16, 16, false}, {12, 0, 16, true}};
  std::vector<Records> all;
  for (const int64_t n : {0, 4, 8, 12, 15}) all.push_back({n, 0, 16, false});
  for (const int64_t F : {8, 16}) all.push_back({F, F, F, false});
  if (T > 1) all.insert(all.end(), {{0, 0, 16, true}, {12, 0, 16, true}, {4, 0, 8, true}});
  return all;
}

}  // namespace

void run_verify(const Run& run) {
  for_states(run, [&](DType state, int64_t B) {
    for (const int64_t T : run.selection.windows) {
      const int64_t R = std::max(default_ring_rows(T, 16, FoldPolicy::grid), kLongestN + T > 32 ? int64_t{64} : 32);
      const LayerShape shape{.B = B, .T = T, .state = state, .R = R};
      Layers layers = run.layers(shape, B * shape.state_bytes());
      for (const auto& [n, folds, F, exact] : verify_records(run, T)) {
        const int64_t bytes = B * (shape.state_bytes() * (folds ? 2 : 1) + n * shape.record_bytes() +
                                   T * (shape.token_bytes() + shape.record_bytes()));
        const std::vector<Launch> launches = launches_of(layers, [&](Layer& layer) -> Launch {
          return [&table = run.table, args = layer.verify(layer.upload(layer.rows(n, folds)), F, exact)](Stream& s) {
            table.gdn_verify(args, s);
          };
        });
        ordered_json line = case_of("verify", shape);
        line.update({{"n", n}, {"fold", folds}, {"F", F}, {"bit_exact", exact}});
        run.print(line, run.time(launches, bytes), bytes, folds > 0);
      }
    }
  });
}

// Whole grains, and materialise: grain 0, as many records as there are.
void run_fold(const Run& run) {
  for_states(run, [&](DType state, int64_t B) {
    const LayerShape shape{.B = B, .T = 0, .state = state};
    Layers layers = run.layers(shape, B * shape.state_bytes());
    for (const auto& [n, grain] :
         std::initializer_list<std::pair<int64_t, int64_t>>{{8, 8}, {16, 16}, {4, 0}, {12, 0}}) {
      const int64_t bytes = B * (2 * shape.state_bytes() + n * shape.record_bytes());
      const std::vector<Launch> launches = launches_of(layers, [&](Layer& layer) -> Launch {
        return [&table = run.table, args = layer.fold(layer.upload(layer.rows(n, n)), grain)](Stream& s) {
          table.gdn_fold(args, s);
        };
      });
      ordered_json line = {{"op", grain ? "fold" : "materialise"}, {"state", name_of(state)}, {"B", B}, {"n", n}};
      run.print(line, run.time(launches, bytes), bytes, true);
    }
  });
}

// One launch a step serves all layers of a model.
void run_commit(const Run& run) {
  for (const int64_t B : run.selection.batches) {
    const int64_t bytes = 8 + 48 * B;
    Layers layers;
    layers.emplace_back(run.table, LayerShape{.B = B, .T = 1}, 0);
    for (const FoldPolicy policy : {FoldPolicy::grid, FoldPolicy::every}) {
      const std::vector<Launch> launches = launches_of(layers, [&](Layer& layer) -> Launch {
        const int32_t* kept = layer.upload(std::vector<int32_t>(static_cast<size_t>(B), 3));
        return [&table = run.table, args = layer.commit(layer.rows(8, 8), kept, 8, policy)](Stream& s) {
          table.commit(args, s);
        };
      });
      ordered_json line = {{"op", "commit"}, {"B", B}, {"policy", policy == FoldPolicy::grid ? "grid" : "every"}};
      run.print(line, run.time(launches, bytes), bytes, false);
    }
  }
}

void run_conv(const Run& run) {
  constexpr int64_t kTaps = 4;
  for (const int64_t B : run.selection.batches) {
    for (const int64_t T : run.selection.windows) {
      const LayerShape shape{.B = B, .T = T};
      const int64_t ring = conv_ring_rows({.T = T, .F = 16, .R = default_ring_rows(T, 16, FoldPolicy::grid)}, kTaps);
      const int64_t bytes = 2 * shape.channels() * B * (T + (kTaps - 1) + T + T) + 4 * kTaps * shape.channels();
      Layers layers = run.layers(shape, bytes);
      const std::vector<Launch> launches = launches_of(layers, [&](Layer& layer) -> Launch {
        return [&table = run.table, args = layer.conv(layer.upload(layer.rows(8, 0)), ring)](Stream& s) {
          table.conv(args, s);
        };
      });
      run.print({{"op", "conv"}, {"T", T}, {"B", B}, {"ring_rows", ring}}, run.time(launches, bytes), bytes, true);
    }
  }
}

void run_prefill(const Run& run) {
  struct Prompts {
    int64_t B, tokens;
  };
  const std::vector<Prompts> cases = run.selection.quick
                                         ? std::vector<Prompts>{{1, 512}}
                                         : std::vector<Prompts>{{1, 64}, {1, 512}, {1, 2048}, {8, 512}, {32, 256}};
  for (const DType state : run.selection.states) {
    for (const auto& [B, tokens] : cases) {
      const LayerShape shape{.B = B, .T = tokens, .state = state};
      const int64_t bytes = B * (2 * shape.state_bytes() + tokens * shape.token_bytes());
      Layers layers = run.layers(shape, bytes);
      for (const bool exact : {false, true}) {
        const std::vector<Launch> launches = launches_of(layers, [&](Layer& layer) -> Launch {
          return [&table = run.table, args = layer.verify(layer.upload(layer.rows(0, tokens)), 16, exact)](Stream& s) {
            table.gdn_prefill(args, s);
          };
        });
        ordered_json line = case_of("prefill", shape);
        const double us = run.time(launches, bytes);
        line.update({{"bit_exact", exact}, {"us_a_token", us / static_cast<double>(B * tokens)}});
        run.print(line, us, bytes, true);
      }
    }
  }
}

// The baseline: a whole state a token out, and the accepted one back.
void run_snapshots(const Run& run) {
  for_states(run, [&](DType state, int64_t B) {
    for (const int64_t T : run.selection.windows) {
      const LayerShape shape{.B = B, .T = T, .state = state};
      const int64_t verify_bytes = B * (shape.state_bytes() * (1 + T) + T * shape.token_bytes());
      const int64_t commit_bytes = B * 2 * shape.state_bytes();
      Layers layers = run.layers(shape, B * shape.state_bytes());
      std::vector<Launch> verify, commit;
      for (Layer& layer : layers) {
        const Rows rows = layer.upload(layer.rows(0, 0));
        const int32_t* kept =
            layer.upload(std::vector<int32_t>(static_cast<size_t>(B), static_cast<int32_t>(T + 1) / 2));
        verify.emplace_back(
            [&table = run.table, args = layer.snapshot_verify(rows)](Stream& s) { table.snapshot_verify(args, s); });
        commit.emplace_back([&table = run.table, args = layer.snapshot_commit(rows, kept)](Stream& s) {
          table.snapshot_commit(args, s);
        });
      }
      run.print(case_of("snapshot_verify", shape), run.time(verify, verify_bytes), verify_bytes, true);
      run.print(case_of("snapshot_commit", shape), run.time(commit, commit_bytes), commit_bytes, true);
    }
  });
}

}  // namespace deltaring::bench
