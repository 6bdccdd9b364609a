// The replay ring in six rungs, on one head of 4 x 4 numbers; docs/replay-ring.md is the prose to it.
//   c++ -std=c++20 -O2 -ffp-contract=off examples/replay_ladder.cc -o ladder && ./ladder
// Contraction is off because bits are compared: a multiply-add shall round alike wherever the compiler inlines it.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

constexpr int K = 4, T = 8;  // head dim, keys and values alike; tokens of the widest verify window, anchor included
using Vec = std::array<float, K>;
using State = std::array<Vec, K>;  // row v answers for value dimension v and never meets another row
struct Token {  // what a layer is fed; all but q, which only asks, is the record. Default: the worst draft there can be
  Vec q{NAN, NAN, NAN, NAN}, k = q, v = q;
  float g = NAN, beta = NAN;
};

// Rung 1, the recurrence: S <- e^g S; d = beta (v - S k); S <- S + d k^T; o = S q.
float dot(const Vec& a, const Vec& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]; }
Vec read(const State& S, const Vec& q) { return {dot(S[0], q), dot(S[1], q), dot(S[2], q), dot(S[3], q)}; }
void update(State& S, const Token& t) {
  for (int v = 0; v < K; v++) {
    for (float& s : S[v]) s *= std::exp(t.g);
    const float d = t.beta * (t.v[v] - dot(S[v], t.k));
    for (int i = 0; i < K; i++) S[v][i] += d * t.k[i];
  }
}
void round_to_bfloat16(State& S) {  // to nearest
  for (Vec& row : S) {
    for (float& s : row) s = std::bit_cast<float>((std::bit_cast<uint32_t>(s) + 0x8000) & 0xffff0000);
  }
}

// Plain decoding, the yardstick: states[i] stands before token i, rounded on multiples of `grain` (0 = never).
struct Plain {
  std::vector<State> states;
  std::vector<Vec> out;
  Plain(State S, const std::vector<Token>& tokens, int grain = 0) : states{S} {
    for (const Token& t : tokens) {
      update(S, t);
      out.push_back(read(S, t.q));
      if (grain && out.size() % grain == 0) round_to_bfloat16(S);
      states.push_back(S);
    }
  }
};

// Rung 2, what engines do: a state cannot forget a rejected draft, so keep one per window token and copy one back.
struct Snapshots {
  State checkpoint{};
  int folded = 0, pos = 0;  // tokens in the checkpoint, tokens accepted: the same here
  Plain walk{{}, {}};
  std::vector<Vec> verify(const std::vector<Token>& window) {
    walk = Plain(checkpoint, window);
    return walk.out;
  }
  void commit(int acc) { checkpoint = walk.states[acc], folded = pos += acc; }  // acc rows of the window are kept
};

// Rung 3: keep records instead and replay them from a checkpoint. Commit moves an integer. Rejection does nothing:
// rejected records lie at >= pos, where the next window overwrites them before anybody reads.
// Rung 4: R rows are enough, position p in row p % R, if old records are folded into the checkpoint. A verify replays
// them anyway, so it stores the state that it meets on the last multiple of the grain F.
// Rung 5: rounded on that grid and nowhere else, the checkpoint may be bfloat16 and no bit of any output changes.
struct Ring {
  int R, F = 1;
  bool bf16 = false, every = false;  // every: off the grid, a verify folds all that is accepted, R >= 2T is enough
  State checkpoint{};
  int folded = 0, pos = 0, fold_to = 0;
  std::vector<Token> records = std::vector<Token>(R);
  std::vector<Vec> verify(const std::vector<Token>& window) {
    std::vector<Vec> out;
    State S = checkpoint;
    const int end = pos + static_cast<int>(window.size());
    for (int p = pos; p < end; p++) records[p % R] = window[p - pos];  // first, as another head may: the worst order
    for (int p = folded; p < end; p++) {
      if (p > folded && (every ? p == pos : p % F == 0)) {
        if (bf16) round_to_bfloat16(S);  // stored or not, so the time of a fold makes no difference
        if (p <= pos) checkpoint = S, fold_to = p;
      }
      update(S, records[p % R]);
      if (p >= pos) out.push_back(read(S, records[p % R].q));
    }
    return out;
  }
  void commit(int acc) { folded = fold_to, pos += acc; }  // a cancelled row, acc = 0, has folded all the same
};

// Rung 6: records and window as one triangular system for the corrections D, without a running state, as tensor cores
// like it. Each sum ends at its own row, so nothing that a later row holds, NaN included, gets in.
struct WindowForm : Ring {
  std::vector<Vec> verify(const std::vector<Token>& window) {
    const State S0 = checkpoint;
    Ring::verify(window);  // for the records and the fold
    std::vector<Token> t;
    for (size_t i = 0; i < pos - folded + window.size(); i++) t.push_back(records[(folded + i) % R]);
    std::vector<float> G(t.size());  // G[i] = g_0 + .. + g_i: every decay is the exp of a difference <= 0
    std::vector<Vec> D(t.size()), out(t.size());
    for (size_t i = 0; i < t.size(); i++) {
      G[i] = t[i].g + (i > 0 ? G[i - 1] : 0);
      for (int v = 0; v < K; v++) {
        float Sk = std::exp(G[i]) * dot(S0[v], t[i].k), o = std::exp(G[i]) * dot(S0[v], t[i].q);
        for (size_t j = 0; j < i; j++) Sk += std::exp(G[i] - G[j]) * dot(t[j].k, t[i].k) * D[j][v];
        D[i][v] = t[i].beta * (t[i].v[v] - Sk);
        for (size_t j = 0; j <= i; j++) o += std::exp(G[i] - G[j]) * dot(t[j].k, t[i].q) * D[j][v];
        out[i][v] = o;
      }
    }
    return {out.begin() + pos - folded, out.end()};
  }
};

// Random tokens with g <= 0, beta < 1 and |k| <= 1, so that no step enlarges an error. (A layer makes |k| = 1.)
std::vector<Token> random_tokens(auto&& random, int count) {
  const auto unit = [&] { return static_cast<float>(random() >> 8) * 0x1p-24f; };
  const auto vec = [&] { return Vec{unit() - 0.5f, unit() - 0.5f, unit() - 0.5f, unit() - 0.5f}; };
  std::vector<Token> tokens(count);
  for (Token& t : tokens) t = {.q = vec(), .k = vec(), .v = vec(), .g = -unit() / 2, .beta = unit()};
  return tokens;
}

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
bool near(float a, float b) { return std::abs(a - b) < 1e-6f; }  // some roundings of numbers below 1; NaN never is
struct Tally {
  int compared = 0, differ = 0;
  void add(const Vec& a, const Vec& b, bool same(float, float)) {
    for (int v = 0; v < K; v++) compared++, differ += !same(a[v], b[v]);
  }
};

// 1,000 schedules with windows of any width and acceptance, NaN in rejected drafts, one row in eight cancelled and one
// in eight rewound, against plain decoding that rounds on multiples of `grain`.
Tally check(const auto& new_seat, int grain = 0, bool same(float, float) = same_bits) {
  Tally tally;
  for (int schedule = 0; schedule < 1000; schedule++) {
    std::mt19937 random(schedule);
    const std::vector<Token> tokens = random_tokens(random, 30 * T);
    const Plain plain({}, tokens, grain);
    auto seat = new_seat;
    for (int step = 0; step < 30; step++) {
      const int width = 1 + random() % T, kept = 1 + random() % width;
      std::vector<Token> window(&tokens[seat.pos], &tokens[seat.pos] + kept);
      window.resize(width);
      const std::vector<Vec> out = seat.verify(window);
      for (int i = 0; i < kept; i++) tally.add(out[i], plain.out[seat.pos + i], same);
      seat.commit(random() % 8 ? kept : 0);
      for (int v = 0; v < K; v++) tally.add(seat.checkpoint[v], plain.states[seat.folded][v], same_bits);
      if (random() % 8 == 0) seat.pos -= random() % (seat.pos - seat.folded + 1);  // to any position >= folded
    }
  }
  return tally;
}

int main() {
  bool ok = true;
  const auto show = [&](const char* rung, const Tally& t, bool same = true) {
    const bool good = t.compared > 0 && (t.differ == 0) == same;
    std::printf("%-40s %7d numbers compared, %7d differ  %s\n", rung, t.compared, t.differ, good ? "ok" : "FAILED");
    ok = ok && good;
  };
  Tally recall;  // an update with beta = 1 / |k|^2 makes the state answer k with v, whatever it held
  for (State S{}; Token t : random_tokens(std::mt19937(), 1000)) {
    t.beta = 1 / dot(t.k, t.k);
    update(S, t);
    recall.add(read(S, t.k), t.v, near);
  }
  constexpr int F = 16, R = F - 1 + 2 * T;
  show("1 recurrence", recall);
  show("2 a snapshot per token", check(Snapshots{}));
  show("3 checkpoint + records", check(Ring{.R = 256, .F = 256}));  // so long that it neither wraps nor folds
  show("4 ring of F-1+2T rows", check(Ring{.R = R, .F = F}));
  show("  one row fewer: live records are lost", check(Ring{.R = R - 1, .F = F}), false);
  show("5 grid, bfloat16 checkpoint", check(Ring{.R = R, .F = F, .bf16 = true}, F));
  show("  every, bfloat16: bits are lost", check(Ring{.R = 2 * T, .bf16 = true, .every = true}, 1), false);
  show("  every, float32 checkpoint", check(Ring{.R = 2 * T, .every = true}));
  show("6 window form, within tolerance", check(WindowForm{{.R = R, .F = F}}, 0, near));
  return ok ? 0 : 1;
}
