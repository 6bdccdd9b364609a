// Comparisons with the golden files; made by transformers in float32, see tests/golden/README.md.
#pragma once
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/safetensors.h"
#include "support/rig.h"

namespace deltaring::test {

// Goldens are float32 results of another summation order: HF's own cached decode and full forward differ by up
// to 4.7e-5.
constexpr double kRelativeToRms = 1e-4;

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : folder_(source_dir() / "tests/golden" / name),
        json_(nlohmann::json::parse(std::ifstream(folder_ / "golden.json"))),
        tensors_(SafeTensors::open_file(folder_ / "golden.safetensors")) {}

  const nlohmann::json& prompt(size_t i) const { return json_["prompts"][i]; }
  std::vector<int32_t> ids(size_t i) const { return prompt(i)["ids"]; }

  template <class T>
  const T* data(size_t i, const std::string& name) const {
    const TensorRef* tensor = tensors_.find(fmt::format("p{}.{}", i, name));
    if (!tensor) throw std::runtime_error("no golden " + name);
    return static_cast<const T*>(tensor->data);
  }

 private:
  std::filesystem::path folder_;
  nlohmann::json json_;
  SafeTensors tensors_;
};

inline double rms(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += double{x[i]} * x[i];
  return std::sqrt(sum / static_cast<double>(n));
}

inline void check_logits(const std::string& backend, const std::string& golden, const std::string& folder,
                         size_t prompts) {
  const GoldenFile file(golden);
  Rig rig(load_folder(source_dir() / folder), {.backend = backend, .threads = 2, .prefill_chunk = 256});
  const int64_t H = rig.model.config().hidden_size, vocab = rig.model.config().vocab_size;
  for (size_t i = 0; i < prompts; i++) {
    const std::vector<int32_t> ids = file.ids(i);
    const int64_t tokens = static_cast<int64_t>(ids.size());
    const int32_t start[] = {0, static_cast<int32_t>(tokens)}, seat = rig.pool.allocate();
    const int64_t zero = 0, fold_to = tokens - tokens % 8;
    rig.pool.reserve(seat, tokens);
    std::vector<float> hidden(tokens * H), logits(tokens * vocab);
    const View<2> h = dense<2>(hidden.data(), DType::f32, {tokens, H}),
                  l = dense<2>(logits.data(), DType::f32, {tokens, vocab});
    rig.model.forward({.count = 1, .start = start, .seat = &seat, .first = &zero, .folded = &zero, .fold_to = &fold_to},
                      ids.data(), true, rig.pool, h);
    rig.model.logits(h, l);
    rig.pool.free(seat);
    const float* last = file.data<float>(i, "last_logits");
    const double bound = kRelativeToRms * rms(last, vocab);
    double worst = 0;
    const auto compare = [&](double got, double want) {
      ASSERT_FALSE(std::isnan(got));
      worst = std::max(worst, std::abs(got - want));
    };
    for (int64_t v = 0; v < vocab; v++) compare(*l.f32(tokens - 1, v), last[v]);
    const int32_t* top_ids = file.data<int32_t>(i, "top20_ids");
    const float* top_values = file.data<float>(i, "top20_values");
    for (int64_t t = 0; t < tokens * 20; t++) compare(*l.f32(t / 20, top_ids[t]), top_values[t]);
    EXPECT_LE(worst, bound) << golden << " prompt " << i;
    std::printf("%s %s prompt %zu: %lld rows, worst logit error %.2e, %.2e of the RMS\n", backend.c_str(),
                golden.c_str(), i, static_cast<long long>(tokens), worst, worst / bound * kRelativeToRms);
  }
}

// Frobenius norms of every head's state behind the prompt; fold policy every leaves them in the checkpoint.
inline void check_states(const std::string& backend, const std::string& golden, const std::string& folder,
                         size_t prompts) {
  const GoldenFile file(golden);
  Rig rig(load_folder(source_dir() / folder),
          {.backend = backend, .threads = 2, .prefill_chunk = 64, .policy = FoldPolicy::every});
  for (size_t i = 0; i < prompts; i++) {
    const Sequence s = rig.start(file.ids(i));
    int64_t gdn = 0;
    for (size_t layer = 0; layer < rig.model.weights().layers.size(); layer++) {
      if (rig.model.weights().layers[layer].kind != LayerKind::gdn) continue;
      const float* want = file.data<float>(i, fmt::format("gdn_state_norms.{}", layer));
      const View<4> checkpoint = rig.pool.gdn(gdn++).checkpoint;
      const int64_t cells = checkpoint.shape[2] * checkpoint.shape[3];
      for (int64_t h = 0; h < checkpoint.shape[1]; h++) {
        const double norm = rms(checkpoint.f32(s.seat, h), cells) * std::sqrt(static_cast<double>(cells));
        EXPECT_NEAR(norm, want[h], kRelativeToRms * want[h])
            << golden << " prompt " << i << " layer " << layer << " head " << h;
      }
    }
    rig.pool.free(s.seat);
  }
}

// Plain decoding, and MTP speculation where there is a head, must continue as the golden does.
inline void check_greedy(const std::string& backend, const std::string& golden, const std::string& folder,
                         size_t prompts) {
  const GoldenFile file(golden);
  Rig rig(load_folder(source_dir() / folder), {.backend = backend, .threads = 2});
  std::optional<MtpDrafter> mtp;
  if (rig.model.weights().mtp) mtp.emplace(rig.model, rig.pool, rig.model.config().vocab_size), rig.use(&*mtp);
  for (size_t i = 0; i < prompts; i++) {
    const std::vector<int32_t> want = file.prompt(i)["greedy"], prompt = file.ids(i);
    for (const int32_t drafts : {0, 3}) {
      Sequence s = rig.start(prompt);
      while (s.tokens.size() < prompt.size() + want.size()) s.max_drafts = drafts, rig.step(s);
      const std::vector<int32_t> got(s.tokens.begin() + prompt.size(), s.tokens.begin() + prompt.size() + want.size());
      EXPECT_EQ(got, want) << golden << " prompt " << i << " with " << drafts << " drafts";
      rig.pool.free(s.seat);
    }
  }
}

// The head's greedy drafts behind each prompt. Prompt 1 has near-ties; its drafts are compared while the gap is clear.
inline void check_mtp(const std::string& backend, const std::string& golden, const std::string& folder) {
  const GoldenFile file(golden);
  Rig rig(load_folder(source_dir() / folder), {.backend = backend, .threads = 2});
  MtpDrafter mtp(rig.model, rig.pool, rig.model.config().vocab_size);
  rig.use(&mtp);
  for (size_t i = 0; i < 3; i++) {
    const Sequence s = rig.start(file.ids(i));
    ASSERT_EQ(s.tokens.back(), file.prompt(i)["anchor"]);
    const DraftRequest request{.seat = s.seat, .drafts = 3, .tokens = s.tokens, .sampling = {}, .seed = 0};
    Proposal proposal;
    mtp.propose({&request, 1}, {&proposal, 1});
    const float* top = file.data<float>(i, "mtp.top20_values");
    const std::vector<int32_t> want = file.prompt(i)["drafts"]["mtp"]["drafts"];
    for (size_t d = 0; d < want.size() && top[d * 20] - top[d * 20 + 1] > 1e-2f; d++)
      EXPECT_EQ(proposal.tokens[d], want[d]) << i << " " << d;
    rig.pool.free(s.seat);
  }
}

}  // namespace deltaring::test
