// One request on the real ops of a backend, its state kept in one of three ways.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "numerics/tokens.h"
#include "ops/cursor.h"

namespace deltaring::numerics {

struct Scheme {
  enum class Kind {
    plain,      // one token a step, the state in place, rounded behind each
    snapshots,  // windows, one state stored per token, the one behind the last accepted token copied back
    replay,     // windows, checkpoint and records
  } kind = Kind::plain;
  DType state = DType::f32;
  // replay only
  FoldPolicy policy = FoldPolicy::grid;
  int64_t F = 16;
  DType record = DType::bf16;

  std::string name() const;  // replay/bfloat16/grid/F:16/record:bfloat16
};

// T tokens, of which the first `genuine` are the text's at `first`; the rest are drafts that are wrong.
struct Window {
  Window(const Shape& shape, int64_t T);
  void fill(const Tokens& tokens, int64_t first, int64_t genuine);

  int64_t T;
  std::vector<float> q, k, v, g, beta, out;  // as in Tokens; out [T, Hv, V]
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Runs the window behind the tokens kept so far, then keeps its first `acc`.
  virtual void step(Window& window, int64_t acc) = 0;
  // The state that the next token would meet. The tokens kept are a multiple of 16.
  virtual void state(std::span<float> S) = 0;  // [Hv, V, K]
};

// From `initial` [Hv, V, K], rounded to the state's dtype, or from zero when empty. Windows of up to T tokens.
std::unique_ptr<Decoder> make_decoder(const Scheme& scheme, const Shape& shape, int64_t T,
                                      std::span<const float> initial, const OpTable& ops, Stream& stream);

}  // namespace deltaring::numerics
