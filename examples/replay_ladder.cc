// The replay ring, rung by rung, on one head of 4 x 4 numbers; docs/replay-ring.md is the prose to it.
//   c++ -std=c++20 -O2 -ffp-contract=off examples/replay_ladder.cc -o ladder && ./ladder
// Contraction is off because bits are compared: a multiply-add shall round alike wherever the compiler inlines it.
//
// R ring rows, F fold grain (0 = off the grid), T tokens of a verify window, acc rows of it that are kept.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

constexpr int64_t K = 4, kWidest = 8;  // head dim, keys and values alike; tokens of the widest window, anchor included
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kEpsilon = std::numeric_limits<float>::epsilon();

using Vec = std::array<float, K>;
using State = std::array<Vec, K>;  // row v answers for value dimension v and never meets another row

struct Record {  // what a token leaves behind: its raw inputs, a function of the token alone, never changed
  Vec k, v;
  float g, beta;
};
struct Token : Record {
  Vec q;
};
constexpr Vec kNoise{kNaN, kNaN, kNaN, kNaN};
constexpr Token kBad{{kNoise, kNoise, kNaN, kNaN}, kNoise};  // the worst draft: rejected, it must leave no trace

float dot(const Vec& a, const Vec& b) {
  float sum = 0;
  for (int64_t i = 0; i < K; i++) sum += a[i] * b[i];
  return sum;
}
float length(const Vec& a) { return std::sqrt(dot(a, a)); }

// Rung 1, the recurrence: S <- e^g S; d = beta (v - S k); S <- S + d k^T; o = S q.
void update(State& S, const Record& t) {
  for (int64_t v = 0; v < K; v++) {
    for (float& s : S[v]) s *= std::exp(t.g);
    const float d = t.beta * (t.v[v] - dot(S[v], t.k));
    for (int64_t i = 0; i < K; i++) S[v][i] += d * t.k[i];
  }
}
Vec read(const State& S, const Vec& q) { return {dot(S[0], q), dot(S[1], q), dot(S[2], q), dot(S[3], q)}; }

void round_to_bfloat16(State& S) {  // to nearest even
  for (Vec& row : S) {
    for (float& s : row) {
      const uint32_t bits = std::bit_cast<uint32_t>(s);
      s = std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
    }
  }
}

// Plain decoding, the yardstick. state[p] stands before token p, rounded on multiples of the grain (0 = never).
struct Plain {
  std::vector<State> state{State{}};
  std::vector<Vec> out;
  Plain(const std::vector<Token>& tokens, size_t grain) {
    for (const Token& t : tokens) {
      State S = state.back();
      update(S, t), out.push_back(read(S, t.q));
      if (grain && out.size() % grain == 0) round_to_bfloat16(S);
      state.push_back(S);
    }
  }
};

// Rung 2, what engines do: a state cannot forget a rejected draft, so keep one per window token and copy one back.
struct Snapshots {
  State checkpoint{};
  int64_t folded = 0;
  std::vector<State> after;
  std::vector<Vec> verify(std::span<const Token> window) {
    std::vector<Vec> out;
    State S = checkpoint;
    after.clear();
    for (const Token& t : window) update(S, t), after.push_back(S), out.push_back(read(S, t.q));
    return out;
  }
  void commit(int64_t acc) {
    if (acc > 0) checkpoint = after[acc - 1];  // asked without the if, acc = 0 reads index -1
    folded += acc;
  }
};

// Rung 3: keep inputs instead and replay them. Commit moves an integer; rejection does nothing, since rejected records
// lie at >= pos, where nobody reads. Left to do: the log grows, and the replay with it.
struct Log {
  State checkpoint{};
  int64_t folded = 0, pos = 0;
  std::vector<Record> records;
  std::vector<Vec> verify(std::span<const Token> window) {
    std::vector<Vec> out;
    State S = checkpoint;
    records.resize(pos);
    for (const Record& r : records) update(S, r);
    for (const Token& t : window) update(S, t), records.push_back(t), out.push_back(read(S, t.q));
    return out;
  }
  void commit(int64_t acc) { pos += acc; }
};

// Rungs 4 and 5: R slots, position p in slot p % R. On the grid a verify replays accepted records into the checkpoint
// up to the last multiple of F (it replays them anyway); off the grid (F = 0) each commit folds all of them.
struct Ring {
  int64_t R, F;
  bool rounded;  // the checkpoint is bfloat16: rung 5
  std::vector<Record> slot{std::vector<Record>(R)};
  State checkpoint{};
  int64_t folded = 0, pos = 0, fold_to = 0;
  int overwritten = 0;                                      // live records lost, counted with the help of
  std::vector<int64_t> holds{std::vector<int64_t>(R, -1)};  // the position that a slot holds

  std::vector<Vec> verify(std::span<const Token> window) {
    std::vector<Vec> out;
    State S = checkpoint;
    const int64_t end = pos + static_cast<int64_t>(window.size());
    fold_to = F ? pos - pos % F : folded;
    for (int64_t p = folded; p < end; p++) {
      // Rounded on every grid point, stored or not, inside the window too: so the time of a fold makes no difference.
      if (rounded && F && p > folded && p % F == 0) round_to_bfloat16(S);
      if (p == fold_to) checkpoint = S;
      if (p < pos) update(S, slot[p % R]);
      if (p >= pos) update(S, window[p - pos]), out.push_back(read(S, window[p - pos].q));
    }
    for (int64_t p = pos; p < end; p++) {
      const int64_t old = std::exchange(holds[p % R], p);
      overwritten += old >= folded && old < pos;  // another head of this verify may still have to read it
      slot[p % R] = window[p - pos];
    }
    return out;
  }
  // acc = 0, a cancelled row, keeps pos. folded moves all the same: that is where the checkpoint stands by now.
  void commit(int64_t acc) {
    folded = fold_to, pos += acc;
    if (F) return;
    for (; folded < pos; folded++) update(checkpoint, slot[folded % R]);
    if (rounded) round_to_bfloat16(checkpoint);
  }
  void rewind(int64_t p) { pos = p; }  // any p in [folded, pos]
};

// Rung 6: value dimension v of all outputs without a running state, as tensor cores like it. The corrections D solve a
// lower triangular system; each sum ends at its own row, so nothing that a later row holds, NaN included, gets in.
std::vector<float> window_form(const State& S0, std::span<const Token> t, int64_t v) {
  std::vector<float> G, D, out;  // G[i] = g_0 + .. + g_i: every decay is the exp of a difference <= 0
  for (size_t i = 0; i < t.size(); i++) {
    G.push_back((i ? G[i - 1] : 0) + t[i].g);
    float projected = std::exp(G[i]) * dot(S0[v], t[i].k), o = std::exp(G[i]) * dot(S0[v], t[i].q);
    for (size_t j = 0; j < i; j++) projected += std::exp(G[i] - G[j]) * dot(t[j].k, t[i].k) * D[j];
    D.push_back(t[i].beta * (t[i].v[v] - projected));
    for (size_t j = 0; j <= i; j++) o += std::exp(G[i] - G[j]) * dot(t[j].k, t[i].q) * D[j];
    out.push_back(o);
  }
  return out;
}

struct Random {
  std::mt19937 bits;
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint32_t>(n)); }
  float unit() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }
  Vec vec() { return {2 * unit() - 1, 2 * unit() - 1, 2 * unit() - 1, 2 * unit() - 1}; }
  std::vector<Token> tokens(int64_t count) {
    std::vector<Token> all(count);
    for (Token& t : all) {
      t.k = t.q = vec(), t.v = vec(), t.g = -unit() / 2, t.beta = unit();
      std::rotate(t.q.begin(), t.q.begin() + 1, t.q.end());
      const float norm = length(t.k);
      for (int64_t i = 0; i < K; i++) t.k[i] /= norm, t.q[i] /= norm * 2;  // q carries K^-1/2
    }
    return all;
  }
};

struct Tally {
  int outputs = 0, wrong_outputs = 0, states = 0, wrong_states = 0, overwritten = 0;
  bool right() const { return outputs > 0 && wrong_outputs + wrong_states + overwritten == 0; }
};

template <class T>
bool differ(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) != 0;
}

// Decodes the tokens in random steps, of any width and acceptance, NaN in rejected drafts, rows cancelled and rewound.
template <class Seat>
void decode(Seat& seat, const std::vector<Token>& tokens, const Plain& plain, Random& random, Tally& tally) {
  for (int64_t pos = 0, end = static_cast<int64_t>(tokens.size()); pos < end;) {
    const int64_t T = 1 + random.below(kWidest), kept = std::min(1 + random.below(T), end - pos);
    std::vector<Token> window(T, kBad);
    std::copy_n(tokens.begin() + pos, kept, window.begin());
    const std::vector<Vec> out = seat.verify(window);
    for (int64_t i = 0; i < kept; i++) tally.outputs++, tally.wrong_outputs += differ(out[i], plain.out[pos + i]);
    const int64_t acc = random.below(8) ? kept : 0;
    seat.commit(acc), pos += acc;
    tally.states++, tally.wrong_states += differ(seat.checkpoint, plain.state[seat.folded]);
    if constexpr (requires { seat.rewind(pos); }) {
      if (random.below(8) == 0) pos -= random.below(pos - seat.folded + 1), seat.rewind(pos);
    }
  }
}

// 1,000 schedules of 100 tokens on rings of `more` rows than the bound asks for.
Tally decode_rings(bool grid, bool rounded, int64_t more = 0) {
  Random random{std::mt19937(5)};
  Tally tally;
  for (int64_t schedule = 0; schedule < 1000; schedule++) {
    const int64_t F = !grid ? 0 : schedule % 2 ? 8 : 16;
    Ring ring{.R = (grid ? F - 1 + 2 * kWidest : kWidest) + more, .F = F, .rounded = rounded};
    const std::vector<Token> tokens = random.tokens(100);
    decode(ring, tokens, Plain(tokens, !rounded ? 0 : grid ? F : 1), random, tally);
    tally.overwritten += ring.overwritten;
  }
  return tally;
}

// Rung 1: with beta = 1 the state answers k with v, whatever it held.
Tally check_recall(Random& random) {
  Tally tally;
  State S{};
  for (Token t : random.tokens(1000)) {
    t.beta = 1;
    update(S, t);
    const Vec answer = read(S, t.k);
    for (int64_t v = 0; v < K; v++) {
      const float bound = 4 * K * kEpsilon * (length(S[v]) + std::abs(t.v[v]));
      tally.outputs++, tally.wrong_outputs += !(std::abs(answer[v] - t.v[v]) <= bound);
    }
  }
  return tally;
}

// Rung 6 against rung 1, the last rows NaN. With |k| = 1 and beta <= 1 a step contracts, so errors never grow: the
// bound is a few roundings, one per term of a sum, of all that was ever added up.
Tally check_window_form(Random& random) {
  Tally tally;
  for (int64_t trial = 0; trial < 1000; trial++) {
    const State S0 = Plain(random.tokens(20), 0).state.back();
    std::vector<Token> tokens = random.tokens(24);
    const int64_t good = 1 + random.below(24);
    std::fill(tokens.begin() + good, tokens.end(), kBad);
    for (int64_t v = 0; v < K; v++) {
      const std::vector<float> out = window_form(S0, tokens, v);
      State S = S0;
      float added = length(S[v]);
      for (int64_t i = 0; i < good; i++) {
        added += std::abs(tokens[i].v[v]) + length(S[v]);
        update(S, tokens[i]);
        const float error = std::abs(out[i] - read(S, tokens[i].q)[v]);
        tally.outputs++, tally.wrong_outputs += !(error <= 4 * static_cast<float>(K + i) * kEpsilon * added);
      }
    }
  }
  return tally;
}

int main() {
  // What a step writes for one layer of Qwen3.8-27B: state, k and v of records in bfloat16, g and beta in float.
  constexpr double Hk = 16, Hv = 48, head = 128, T = 8, acc = 4, F = 16;
  constexpr double state = Hv * head * head * 2, record = (Hk + Hv) * head * 2 + Hv * 2 * 4;
  constexpr double on_grid = T * record + acc / F * state;
  std::printf("One layer of Qwen3.8-27B: a bfloat16 state is %.0f bytes, a record %.0f.\n", state, record);
  std::printf("Bytes are what a step writes at T = %.0f, acc = %.0f, F = %.0f.\n\n", T, acc, F);
  std::printf("%-34s %9s %9s %8s %7s %7s %7s %12s\n", "rung", "B/step", "B/token", "outputs", "differ", "states",
              "differ", "records lost");
  bool all = true;
  const auto show = [&](const char* rung, double bytes, double tokens, const Tally& t, bool ok) {
    std::printf("%-34s %9.0f %9.0f %8d %7d %7d %7d %12d  %s\n", rung, bytes, bytes / tokens, t.outputs, t.wrong_outputs,
                t.states, t.wrong_states, t.overwritten, ok ? "ok" : "FAILED");
    all = all && ok;
  };
  Random random{std::mt19937(1)};
  const std::vector<Token> tokens = random.tokens(2000);
  const Plain plain(tokens, 0);

  Tally t = check_recall(random);
  show("1 recurrence", state, 1, t, t.right());
  Snapshots snapshots;
  decode(snapshots, tokens, plain, random, t = {});
  show("2 a snapshot per token", (T + 1) * state, acc, t, t.right());
  Log log;
  decode(log, tokens, plain, random, t = {});
  show("3 checkpoint + records", T * record, acc, t, t.right());
  t = decode_rings(true, false);
  show("4 ring of F-1+2T rows", on_grid, acc, t, t.right());
  t = decode_rings(true, false, -1);
  show("  one row fewer: records are lost", on_grid, acc, t, t.overwritten > 0);
  t = decode_rings(true, true);
  show("5 grid, bfloat16 checkpoint", on_grid, acc, t, t.right());
  t = decode_rings(false, true);
  show("  every, bfloat16: bits are lost", T * record + state, acc, t, t.wrong_outputs > 0 && t.overwritten == 0);
  t = decode_rings(false, false);
  show("  every, float32 checkpoint", T * record + 2 * state, acc, t, t.right());
  t = check_window_form(random);
  show("6 window form, within tolerance", on_grid, acc, t, t.right());
  return all ? 0 : 1;
}
