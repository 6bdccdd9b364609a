// Whole steps of a layer, amortised: rows move by recorded acceptance, so that records and due folds are mixed as in
// service. Counted are the gated delta rule's launches; a step's one commit and its conv have lines of their own.
#include <numeric>

#include "cuda/acceptance.h"
#include "cuda/run.h"

namespace deltaring::bench {

namespace {

using nlohmann::ordered_json;

constexpr int kSteps = 64;

// How rejected tokens are undone.
enum class Rollback { grid, every, snapshot };
constexpr const char* kRollbacks[] = {"grid", "every", "snapshot"};

struct StepCase {
  LayerShape shape;
  Rollback rollback;
  int64_t F = 16;
  bool exact = false;
};

// The launches of kSteps steps, and what they move.
class Steps {
 public:
  Steps(const Run& run, const StepCase& c, const Acceptance& acceptance)
      : table_(run.table), c_(c), layers_(run.layers(c.shape, c.shape.B * c.shape.state_bytes())) {
    rows_ = layers_[0].rows(0, 0);
    for (int step = 0; step < kSteps; step++) {
      std::vector<int32_t> kept;
      for (int64_t b = 0; b < c.shape.B; b++) kept.push_back(acceptance.at(b, c.shape.B, step));
      tokens_ += std::accumulate(kept.begin(), kept.end(), int64_t{0});
      Layer& layer = layers_[static_cast<size_t>(step) % layers_.size()];
      launches_.push_back(c.rollback == Rollback::grid    ? grid_step(layer, kept)
                          : c.rollback == Rollback::every ? every_step(layer, kept)
                                                          : snapshot_step(layer, kept));
    }
  }

  void measure(const Run& run, const Acceptance& acceptance) const {
    const double us = graph_us(
        kSteps, [&](int i, cudaStream_t stream) { launches_[static_cast<size_t>(i)](*table_.wrap_stream(stream)); });
    const double row_steps = static_cast<double>(kSteps * c_.shape.B);
    ordered_json line = {{"op", "step"},
                         {"policy", kRollbacks[static_cast<int>(c_.rollback)]},
                         {"state", name_of(c_.shape.state)},
                         {"T", c_.shape.T},
                         {"B", c_.shape.B}};
    if (c_.rollback != Rollback::snapshot) line.update({{"F", c_.F}, {"R", c_.shape.R}, {"bit_exact", c_.exact}});
    line.update({{"acceptance", acceptance.name},
                 {"kept", static_cast<double>(tokens_) / row_steps},
                 {"folds", static_cast<double>(folds_) / row_steps}});
    run.print(line, us, bytes_ / kSteps, true);
  }

 private:
  // Bytes of a row's verify: its window, the records before it, and `states` times the state.
  void count(int64_t n, int64_t states, bool records) {
    const LayerShape& s = c_.shape;
    bytes_ +=
        states * s.state_bytes() + n * s.record_bytes() + s.T * (s.token_bytes() + (records ? s.record_bytes() : 0));
  }

  Launch grid_step(Layer& layer, const std::vector<int32_t>& kept) {
    for (size_t b = 0; b < kept.size(); b++) {
      const Cursor cursor{.folded = rows_.folded[b], .pos = rows_.first[b]};
      rows_.fold_to[b] = plan_fold(cursor, c_.F, FoldPolicy::grid);
      const bool fold = rows_.fold_to[b] > cursor.folded;
      count(cursor.pos - cursor.folded, fold ? 2 : 1, true), folds_ += fold;
    }
    const GdnVerifyArgs args = layer.verify(layer.upload(rows_), c_.F, c_.exact);
    for (size_t b = 0; b < kept.size(); b++) rows_.folded[b] = rows_.fold_to[b], rows_.first[b] += kept[b];
    return [this, args](Stream& stream) { table_.gdn_verify(args, stream); };
  }

  // The verify finds no records, and a fold behind it takes what was kept.
  Launch every_step(Layer& layer, const std::vector<int32_t>& kept) {
    rows_.fold_to = rows_.folded = rows_.first;
    const GdnVerifyArgs verify = layer.verify(layer.upload(rows_), 0, false);
    for (size_t b = 0; b < kept.size(); b++) {
      rows_.fold_to[b] = rows_.first[b] += kept[b];
      count(kept[b], 3, true), folds_++;
    }
    const GdnFoldArgs fold = layer.fold(layer.upload(rows_), 0);
    return [this, verify, fold](Stream& stream) { table_.gdn_verify(verify, stream), table_.gdn_fold(fold, stream); };
  }

  Launch snapshot_step(Layer& layer, const std::vector<int32_t>& kept) {
    const Rows rows = layer.upload(rows_);
    const SnapshotVerifyArgs verify = layer.snapshot_verify(rows);
    const SnapshotCommitArgs commit = layer.snapshot_commit(rows, layer.upload(kept));
    for (size_t b = 0; b < kept.size(); b++) rows_.first[b] += kept[b], count(0, 1 + c_.shape.T + 2, false);
    return [this, verify, commit](Stream& stream) {
      table_.snapshot_verify(verify, stream), table_.snapshot_commit(commit, stream);
    };
  }

  const OpTable& table_;
  StepCase c_;
  Layers layers_;
  StepRows rows_;
  std::vector<Launch> launches_;
  int64_t bytes_ = 0, tokens_ = 0, folds_ = 0;
};

// Every way to serve a window of T tokens: policies, grains, rings of the fewest rows and of twice as many.
std::vector<StepCase> cases_of(const Run& run, DType state, int64_t B, int64_t T) {
  std::vector<StepCase> all;
  const auto add = [&](Rollback rollback, int64_t F, int64_t R, bool exact) {
    all.push_back({{.B = B, .T = T, .state = state, .R = R}, rollback, F, exact});
  };
  for (const int64_t F : {8, 16}) {
    const int64_t R = default_ring_rows(T, F, FoldPolicy::grid);
    for (const bool exact : {false, true}) add(Rollback::grid, F, R, exact);
    if (!run.selection.quick) add(Rollback::grid, F, 2 * R, false);
  }
  add(Rollback::every, 16, default_ring_rows(T, 16, FoldPolicy::every), false);
  if (T > 1) add(Rollback::snapshot, 16, 16, false);
  return all;
}

}  // namespace

void run_steps(const Run& run) {
  for (const int64_t T : run.selection.step_windows) {
    std::vector<Acceptance> recordings = recorded_acceptance(run.selection.acceptance, T);
    if (run.selection.quick) recordings.erase(recordings.begin(), recordings.end() - 1);
    for (const DType state : run.selection.states)
      for (const int64_t B : run.selection.step_batches)
        for (const Acceptance& acceptance : recordings)
          for (const StepCase& c : cases_of(run, state, B, T)) Steps(run, c, acceptance).measure(run, acceptance);
  }
}

}  // namespace deltaring::bench
