#include "engine/stop_strings.h"

namespace deltaring::test {
namespace {

TEST(EngineStops, CutInsideAcceptedBlocks) {
  Engine engine(engine_options("eagle", 8));
  EXPECT_GT(check_stop_strings(engine, kPrompts[0], 24, 11, {1, 2, 3, 5, 9}), 0);
}

TEST(EngineStops, TheEarliestOfSeveralWins) {
  Engine engine(engine_options("eagle", 8));
  const std::string text = run(engine, kPrompts[0], greedy(20)).text;
  GenerateOptions g = greedy(20);
  g.stop = {text.substr(30, 4), text.substr(12, 5), text.substr(20, 3)};
  size_t first = std::string::npos;
  for (const std::string& stop : g.stop) first = std::min(first, text.find(stop));
  EXPECT_EQ(run(engine, kPrompts[0], g).text, text.substr(0, first));
}

// A text that could still become a stop string is held back, and comes out when it does not.
TEST(EngineStops, HeldTextComesOutAtTheEnd) {
  Engine engine(engine_options("eagle", 4));
  const GenerateResult whole = run(engine, kPrompts[0], greedy(16));
  GenerateOptions g = greedy(16);
  g.stop = {whole.text.substr(whole.text.size() - 5) + "\x01"};
  std::string stream;
  const GenerateResult r = engine.generate(std::string_view(kPrompts[0]), g, [&](std::string_view piece) {
    stream += piece;
    return true;
  });
  EXPECT_EQ(r.text, whole.text);
  EXPECT_EQ(stream, whole.text);
  EXPECT_EQ(r.finish_reason, FinishReason::length);
}

}  // namespace
}  // namespace deltaring::test
