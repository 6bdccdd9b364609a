// The block drafters against the PyTorch reference of training/, on random weights with every option.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/block_drafters.h"
#include "support/golden.h"

namespace deltaring::test {
namespace {

class BlockGolden : public ::testing::TestWithParam<const char*> {};

struct GoldenCase {
  GoldenCase(const std::string& name, size_t which)
      : folder(drafter_goldens() / name),
        json(nlohmann::json::parse(std::ifstream(folder / "golden.json"))["cases"][which]),
        tensors(SafeTensors::open_file(folder / "golden.safetensors")),
        prefix(std::to_string(which) + ".") {}
  const TensorRef* find(const std::string& tensor) const { return tensors.find(prefix + tensor); }
  const float* data(const std::string& tensor) const { return static_cast<const float*>(find(tensor)->data); }

  std::filesystem::path folder;
  nlohmann::json json;
  SafeTensors tensors;
  std::string prefix;
};

// The taps of the case become the context of a seat, cut into pieces of `chunk`.
Sequence give_context(BlockRig& b, const GoldenCase& golden, int64_t chunk) {
  const TensorRef* taps = golden.find("taps");
  const int64_t tokens = taps->shape[0], width = taps->shape[1];
  Sequence s{.seat = b.rig.pool.allocate(), .tokens = std::vector<int32_t>(static_cast<size_t>(tokens), 1)};
  s.tokens.push_back(golden.json["anchor"]);
  EXPECT_TRUE(b.rig.pool.reserve(s.seat, tokens + b.drafter->config().block_size));
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    const int32_t start[] = {0, static_cast<int32_t>(count)};
    const Rows rows{.count = 1, .start = start, .seat = &s.seat, .first = &first};
    float* data = const_cast<float*>(static_cast<const float*>(taps->data)) + first * width;
    b.drafter->extend({.rows = rows,
                       .next = s.tokens.data() + first + 1,
                       .hidden = {},
                       .taps = dense<2>(data, DType::f32, {count, width})});
    b.rig.pool.commit(s.seat, first, count);
  }
  return s;
}

void expect_close(View<2> got, const GoldenCase& golden, const std::string& name, const std::string& where) {
  const TensorRef* want = golden.find(name);
  ASSERT_EQ(want->shape, (std::vector<int64_t>{got.shape[0], got.shape[1]})) << where << name;
  const int64_t size = got.shape[0] * got.shape[1];
  const float* numbers = golden.data(name);
  double worst = 0;
  for (int64_t i = 0; i < size; i++) {
    const double error = std::abs(double{got.f32()[i]} - numbers[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, kRelativeToRms * rms(numbers, size)) << where << name;
  std::printf("%s%s: worst error %.1e of the RMS\n", where.c_str(), name.c_str(), worst / rms(numbers, size));
}

void check_case(const std::string& name, const std::string& backend, size_t which, int64_t chunk) {
  const std::string where = fmt::format("{} {} case {} chunk {} ", backend, name, which, chunk);
  const GoldenCase golden(name, which);
  BlockRig b(name, {.backend = backend, .T = 9, .prefill_chunk = 64});
  const Sequence s = give_context(b, golden, chunk);
  const std::vector<int32_t> want = golden.json["drafts"];
  const Proposal got = b.proposal(s, static_cast<int32_t>(want.size()));
  EXPECT_EQ(got.tokens, want) << where;
  expect_close(b.drafter->hidden(), golden, "hidden", where);
  expect_close(b.drafter->logits(), golden, "logits", where);
  const TensorRef* confidence = golden.find("confidence");
  ASSERT_EQ(got.confidence.size(), confidence ? want.size() : 0) << where;
  for (size_t i = 0; i < got.confidence.size(); i++)
    EXPECT_NEAR(got.confidence[i], golden.data("confidence")[i], 1e-5) << where << i;
  EXPECT_TRUE(got.q.empty()) << where << "greedy drafts are point masses";
  EXPECT_EQ(b.drafts(s, 0).size(), 0u);
  EXPECT_EQ(b.drafts(s, static_cast<int32_t>(want.size())), want) << where << "asking leaves nothing behind";
}

TEST_P(BlockGolden, WholeBlock) { check_case(GetParam(), "cpu", 0, 64); }
TEST_P(BlockGolden, ShorterBlockBehindAShortContext) { check_case(GetParam(), "cpu", 1, 64); }
TEST_P(BlockGolden, ContextInPieces) { check_case(GetParam(), "cpu", 0, 7); }
TEST_P(BlockGolden, InDouble) { check_case(GetParam(), "reference", 0, 64); }

// The law of a draft is the softmax of what it was chosen from: of the logits, or of the path scores of the candidates.
TEST_P(BlockGolden, LawOfTheFirstDraft) {
  const GoldenCase golden(GetParam(), 0);
  BlockRig b(GetParam(), {.T = 9});
  Sequence s = give_context(b, golden, 64);
  s.sampling.temperature = 1.25f;
  const BlockConfig& c = b.drafter->config();
  const bool path = c.selector_rank > 0;
  const std::string from = path ? "scores" : "logits";
  const int64_t count = golden.find(from)->shape[1];
  const float* scores = golden.data(from);
  std::vector<double> want(static_cast<size_t>(c.vocab_size));
  double sum = 0;
  const double top = *std::max_element(scores, scores + count);
  for (int64_t i = 0; i < count; i++) sum += std::exp((scores[i] - top) / s.sampling.temperature);
  const BlockWeights weights = golden_drafter(GetParam(), golden_target_config());
  for (int64_t i = 0; i < count; i++) {
    int64_t id = i;
    if (path) id = static_cast<const int32_t*>(golden.find("candidates")->data)[i];
    if (c.draft_vocab_size > 0) id = weights.target_ids[static_cast<size_t>(i)];
    want[static_cast<size_t>(id)] = std::exp((scores[i] - top) / s.sampling.temperature) / sum;
  }
  std::map<int32_t, int> seen;
  constexpr int kRuns = 400;
  for (s.seed = 0; s.seed < kRuns; s.seed++) {
    const Proposal p = b.proposal(s, static_cast<int32_t>(c.drafts()));  // fewer rows would see less
    ASSERT_EQ(p.tokens.size(), static_cast<size_t>(c.drafts()));
    const size_t width = p.q.size() / p.tokens.size();
    ASSERT_EQ(width, path ? static_cast<size_t>(count) : c.draft_vocab_size > 0 ? 64 : want.size());
    ASSERT_EQ(p.q_ids.size(), width < want.size() ? p.q.size() : 0);
    seen[p.tokens[0]]++;
    if (s.seed > 0) continue;
    std::vector<float> q(want.size());
    for (size_t i = 0; i < width; i++) q[p.q_ids.empty() ? i : static_cast<size_t>(p.q_ids[i])] = p.q[i];
    for (size_t id = 0; id < want.size(); id++) EXPECT_NEAR(q[id], want[id], 1e-5) << GetParam() << " id " << id;
  }
  for (size_t id = 0; id < want.size(); id++) {  // a binomial count is within 6 deviations
    const double expected = want[id] * kRuns;
    EXPECT_NEAR(seen[static_cast<int32_t>(id)], expected, 6 * std::sqrt(expected) + 3) << GetParam() << " id " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockGolden, ::testing::ValuesIn(kGoldenDrafters), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace deltaring::test
