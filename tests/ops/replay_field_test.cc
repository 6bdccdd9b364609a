// What broke in other engines, at the level of the kernels and on every backend. The Driver compares each accepted
// output and everything a seat stores with plain decoding; a test here only has to steer into the corner.
#include <gtest/gtest.h>

#include "backends/tables.h"
#include "base/error.h"
#include "ops/replay_properties.h"

namespace deltaring::replay {
namespace {

constexpr Shape kShape{.Hk = 1, .Hv = 2, .K = 8, .V = 12, .checkpoint = DType::bf16, .record = DType::bf16};
constexpr Shape kChannels{
    .Hk = 2, .Hv = 2, .K = 12, .V = 7, .G = 12, .checkpoint = DType::f32, .record = DType::f16, .F = 16};
constexpr Shape kSnapshots{.Hk = 1, .Hv = 2, .K = 8, .V = 9, .checkpoint = DType::bf16, .rollback = Rollback::snapshot};

class ReplayField : public testing::TestWithParam<const OpTable*> {
 protected:
  Subject subject() const { return subject_of(*GetParam()); }

  // Runs a schedule on requests of one shape and reports what did not hold.
  template <class Schedule>
  void drive(const Shape& shape, int64_t T, int64_t seats, int64_t length, const Schedule& schedule,
             int64_t first_request = 0) const {
    const World world(subject(), shape, std::min<int64_t>(seats, 3), length, first_request);
    Failures failures = world.failures;
    if (failures.empty()) {
      Driver driver(world, T, ring_rows(world, T), seats, failures);
      for (int64_t seat = 0; seat < seats; seat++) driver.admit(seat, seat % 3);
      schedule(driver);
    }
    for (const std::string& f : failures) ADD_FAILURE() << f;
  }

  // On a ring of each kind of gate, and on snapshots.
  template <class Schedule>
  void drive(int64_t T, int64_t seats, int64_t length, const Schedule& schedule) const {
    for (const Shape& shape : {kShape, kChannels, kSnapshots}) drive(shape, T, seats, length, schedule);
  }
};

Turn window(int32_t seat, int32_t length, int32_t keep, Draft draft = Draft::other) {
  return {.seat = seat, .length = length, .keep = keep, .draft = draft};
}

TEST_P(ReplayField, Field_A1_every_accepted_count_and_no_seat_in_one_batch) {
  drive(4, 5, 120, [](Driver& d) {
    for (int i = 0; i < 25 && d.ok(); i++) {
      const int64_t before = d.seat(2).cursor.pos;
      d.step({window(0, 4, 4), window(-1, 4, 0, Draft::nan), window(2, 4, 0), window(1, 4, 1), window(4, 4, 2),
              window(3, 4, 3)});
      EXPECT_EQ(d.seat(2).cursor.pos, before);
    }
  });
}

TEST_P(ReplayField, Field_A1_nothing_accepted_for_200_steps) {
  drive(4, 4, 40, [](Driver& d) {
    for (int32_t seat = 0; seat < 4; seat++) d.prefill({{.seat = seat, .length = 7 + seat}});
    for (int i = 0; i < 200 && d.ok(); i++) {
      d.step({window(0, 4, 0), window(1, 3, 0, Draft::nan), window(2, 1, 0), window(3, 2, 0)});
    }
    for (int i = 0; i < 5 && d.ok(); i++) d.step({window(3, 4, 4), window(1, 4, 3), window(0, 4, 2), window(2, 4, 1)});
  });
}

TEST_P(ReplayField, Field_A2_every_accepted_count_moves_conv_and_state_alike) {
  for (int32_t T : {2, 4, 8, 16}) {
    drive(T, 1, 150, [T](Driver& d) {
      for (int32_t keep = 0; keep <= T && d.left(0) >= T && d.ok(); keep++) {
        d.step({window(0, T, keep)});
        if (d.left(0) >= T && d.ok()) d.step({window(0, 1, 1)});
      }
    });
  }
}

TEST_P(ReplayField, Field_A3_steps_without_drafts_between_steps_with_drafts) {
  drive(8, 3, 330, [](Driver& d) {
    for (int i = 0; i < 40 && d.ok(); i++) {
      d.step({window(0, 8, 6), window(1, 1, 1), window(2, 4, 1)});
      if (d.ok()) d.step({window(2, 1, 1), window(0, 1, 1), window(1, 8, 3)});
      if (d.ok()) d.step({window(1, 1, 1), window(2, 8, 5), window(0, 4, 1)});
    }
  });
}

TEST_P(ReplayField, Field_A5_drafts_that_are_always_wrong) {
  drive(8, 1, 110, [](Driver& d) {
    for (int i = 0; i < 100 && d.ok(); i++) d.step({window(0, 8, 1, kDrafts[i % std::size(kDrafts)])});
  });
}

TEST_P(ReplayField, Field_A6_a_cancelled_window_leaves_the_request_as_it_was) {
  for (int32_t start = 0; start <= 17; start++) {
    drive(4, 1, 40, [start](Driver& d) {
      if (start > 0) d.prefill({{.seat = 0, .length = start}});
      d.step({window(0, 4, 0, Draft::nan)});
      EXPECT_EQ(d.seat(0).cursor.pos, start);
      for (int32_t keep : {0, 4, 0, 0, 1, 4})
        if (d.ok()) d.step({window(0, 4, keep)});
    });
  }
}

TEST_P(ReplayField, Field_A8_conv_window_of_any_width) {
  for (int64_t taps : {1, 2, 3, 4, 6}) {
    Shape shape = kShape;
    shape.taps = taps;
    drive(shape, 8, 1, 120, [](Driver& d) {
      for (int32_t keep : {1, 8, 2, 7, 3, 6, 4, 5, 0, 8, 1, 1, 1, 8}) {
        if (d.ok()) d.step({window(0, 8, keep, Draft::nan)});
      }
    });
  }
}

TEST_P(ReplayField, Field_A10_pos_moves_by_what_was_kept_when_windows_are_shorter_than_planned) {
  drive(8, 1, 120, [](Driver& d) {
    int64_t pos = 0;
    for (int32_t length : {3, 8, 1, 4, 2, 8, 5, 0, 3, 7}) {
      for (int32_t keep : {length, length / 2, 0}) {
        if (d.ok()) d.step({window(0, length, keep)});
        EXPECT_EQ(d.seat(0).cursor.pos, pos += keep);
      }
    }
  });
}

TEST_P(ReplayField, Field_A12_a_row_without_a_seat_between_rows_with_one) {
  drive(4, 6, 60, [](Driver& d) {
    for (int i = 0; i < 12 && d.ok(); i++) {
      d.step({window(5, 4, 3), window(-1, 4, 4), window(3, 4, 2)});
      if (d.ok() && !d.world().shape.snapshots()) d.fold({5, -1, 3});
    }
  });
}

TEST_P(ReplayField, Field_A13_non_finite_rejected_drafts_change_nothing) {
  drive(8, 2, 80, [](Driver& d) {
    for (Draft draft : kDrafts) {
      for (int32_t keep = 0; keep < 8 && d.ok(); keep++) {
        d.admit(0, 0), d.admit(1, 1);
        d.prefill({{.seat = 0, .length = 5}, {.seat = 1, .length = 8}});
        for (int i = 0; i < 4 && d.ok(); i++) d.step({window(1, 8, 8), window(0, 8, keep, draft)});
      }
    }
  });
}

TEST_P(ReplayField, Field_A16_many_tokens_on_top_of_a_state) {
  for (int32_t n : {1, 2, 3, 5, 16, 64, 65}) {
    drive(4, 1, 160, [n](Driver& d) {
      for (int32_t length : {7, n, n, 1})
        if (d.ok()) d.prefill({{.seat = 0, .length = length}});
      if (d.ok()) d.step({window(0, 4, 4)});
    });
  }
}

TEST_P(ReplayField, Field_B7_one_call_or_two_split_anywhere) {
  for (int32_t T : {2, 3, 4, 8, 16}) {
    drive(T, 1, 40, [T](Driver& d) {
      for (int32_t split = 1; split < T && d.ok(); split++) {
        d.admit(0, 0);
        for (int32_t length : {5, split, T - split, T})
          if (length <= T && d.ok()) d.step({window(0, length, length)});
      }
    });
  }
}

TEST_P(ReplayField, Field_B2_every_way_to_fold_has_the_same_bits) {
  for (const Shape& shape : {kShape, kChannels}) {
    drive(shape, 5, 3, 120, [](Driver& d) {
      for (int i = 0; i < 6 && d.ok(); i++) {
        d.step({window(2, 5, 5), window(0, 4, 4), window(1, 3, 3)});
        if (d.ok()) d.fold({0});                                                          // alone
        if (d.ok()) d.step({window(0, 5, 1), window(1, 5, 5)});                           // in a verify
        if (d.ok()) d.prefill({{.seat = 2, .length = 7 + i}, {.seat = 0, .length = 3}});  // in a prefill
        if (d.ok()) d.fold({1, 2});
        for (int32_t seat : {0, 1, 2}) EXPECT_LT(d.seat(seat).cursor.pos - d.seat(seat).cursor.folded, 16 + 2 * 5);
      }
    });
  }
}

TEST_P(ReplayField, Field_B9_gates_at_their_limits_repeated_keys_and_zero_vectors) {
  for (int64_t G : {1, 9}) {
    for (QkNorm norm : {QkNorm::l2, QkNorm::none}) {
      for (DType t : {DType::f32, DType::bf16, DType::f16}) {
        const auto corners = [&](Shape shape) {
          shape.K = 9, shape.G = G, shape.norm = norm, shape.checkpoint = t;
          drive(
              shape, 5, 1, 100,
              [](Driver& d) {
                for (int i = 0; i < 24 && d.ok(); i++) d.step({window(0, 5, 4, Draft::nan)});
              },
              kCornerRequest);
        };
        corners(kShape), corners(kSnapshots);
      }
    }
  }
}

TEST_P(ReplayField, Field_C1_padding_next_to_a_request_in_seat_0) {
  drive(4, 3, 220, [](Driver& d) {
    for (int i = 0; i < 100 && d.ok(); i++) {
      std::vector<Turn> turns = {window(0, 4, 2), window(2, 4, 1), window(1, 4, 2)};
      while (turns.size() < (i % 2 ? 8u : 4u)) turns.push_back(window(-1, 4, 0, i % 3 ? Draft::nan : Draft::huge));
      d.step(turns);
    }
  });
}

// What was accepted belongs to a row, wherever it stood in the batch and whoever has left it since.
TEST_P(ReplayField, Field_C3_counts_go_with_their_rows) {
  Rng rng(3);
  drive(5, 6, 200, [&rng](Driver& d) {
    std::vector<int32_t> present = {0, 1, 2, 3, 4, 5};
    for (int i = 0; i < 60 && d.ok(); i++) {
      std::ranges::shuffle(present, rng);
      if (i % 10 == 9) present = {5, 3, 1, 0, 2, 4};
      if (present.size() > 1 && i % 3 == 0) present.pop_back();
      std::vector<Turn> turns;
      for (int32_t seat : present)
        if (d.left(seat) >= 5) turns.push_back(window(seat, 5, (seat + i) % 6, pick_draft(rng)));
      d.step(turns);
    }
  });
}

TEST_P(ReplayField, Field_C5_100_rows_padded_to_112) {
  drive(3, 100, 30, [](Driver& d) {
    for (int i = 0; i < 4 && d.ok(); i++) {
      std::vector<Turn> turns;
      for (int32_t seat = 0; seat < 100; seat++) turns.push_back(window(seat, 3, (seat + i) % 4, Draft::nan));
      while (turns.size() < 112) turns.push_back(window(-1, 3, 0, Draft::nan));
      d.step(turns);
    }
  });
}

// Outputs are NaN before each call, so a kernel that leaves padding alone shows.
TEST_P(ReplayField, Field_C7_nothing_but_padding) {
  drive(4, 2, 30, [](Driver& d) {
    for (Draft draft : kDrafts) {
      d.step({window(-1, 4, 0, draft), window(-1, 1, 0, draft)});
      d.prefill({window(-1, 70, 0, draft)});
    }
    d.step({window(0, 4, 4), window(1, 4, 4)});
  });
}

// 1,000 trials: each row of a ragged batch computes what it computes in a dense one and alone.
TEST_P(ReplayField, Field_C13_ragged_rows) {
  Rng rng(13);
  const int32_t lengths[] = {0, 1, 8, 3, 5, 8};
  int trials = 0;
  const auto schedule = [&](Driver& d) {
    for (int i = 0; i < 334 && d.ok(); i++, trials++) {
      std::vector<Turn> turns;
      for (int32_t seat = 0; seat < 6; seat++) {
        if (d.left(seat) < 8) d.admit(seat, seat % 3);
        const int32_t length = lengths[pick(rng, 5)];
        turns.push_back(window(seat, length, int32_t(pick(rng, length)), pick_draft(rng)));
      }
      std::ranges::shuffle(turns, rng);
      d.step(turns);
    }
  };
  drive(8, 6, 120, schedule);
  EXPECT_GE(trials, 1000);
}

INSTANTIATE_TEST_SUITE_P(, ReplayField, testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param->name; });

// Where the host can look into the rows, a call that cannot be served is an error and leaves the pools alone.
class ReplayRefusals : public ReplayField {};

TEST_P(ReplayRefusals, Field_C15_E15_calls_out_of_range_are_refused) {
  Subject s = subject();
  const Parameters weights(kShape);
  const auto refuses = [&](const Row& row, bool prefill) {
    Layer layer(s, kShape, weights, 4, 16, 2, 1);
    layer.poison_each_call = false;
    layer.clear(0);
    const auto before = layer.pools().copy();
    Failures failures;
    EXPECT_THROW(layer.run({row}, prefill, failures), Error);
    EXPECT_EQ(layer.pools().copy(), before);
  };
  refuses({.seat = 2, .length = 1}, false);
  refuses({.seat = -2, .length = 1}, false);
  s.table.conv = [](const ConvArgs&, Stream&) {};  // so that the next calls reach gdn
  for (bool prefill : {false, true}) {
    refuses({.seat = 2, .length = 1}, prefill);
    refuses({.seat = -2, .length = 1}, prefill);
    refuses({.seat = 0, .cursor = {.folded = 8, .pos = 4}, .fold_to = 8, .length = 1}, prefill);   // folded > pos
    refuses({.seat = 0, .cursor = {.folded = 8, .pos = 20}, .fold_to = 0, .length = 1}, prefill);  // backwards
    refuses({.seat = 0, .cursor = {.folded = 0, .pos = 9}, .fold_to = 9, .length = 1}, prefill);   // off the grid
    refuses({.seat = 0, .cursor = {.folded = 0, .pos = 7}, .fold_to = 0, .length = 10}, prefill);  // past the ring
  }
  refuses({.seat = 0, .cursor = {.folded = 0, .pos = 7}, .fold_to = 8, .length = 4}, false);  // inside the window
}

INSTANTIATE_TEST_SUITE_P(, ReplayRefusals, testing::ValuesIn(on_host(backends())),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace deltaring::replay
