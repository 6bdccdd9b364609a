#include "model/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "model/json_fields.h"
#include "model/pretokenizer.h"
#include "model/utf8.h"

namespace deltaring {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kModelFile = DELTARING_SOURCE_DIR "/models/tiny-py/tokenizer.json";

const json& model_json() {
  static const json root = json::parse(read_text(kModelFile));
  return root;
}

// The shipped tokenizer and the same with the regex of Qwen3-Next.
const Tokenizer& qwen3_5() {
  static const Tokenizer tokenizer = Tokenizer::load(kModelFile);
  return tokenizer;
}
const Tokenizer& qwen3_next() {
  static const Tokenizer tokenizer = [] {
    json root = model_json();
    root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kQwen3NextRegex;
    return Tokenizer::parse(root.dump(), "qwen3-next");
  }();
  return tokenizer;
}

const json& vectors() {
  static const json root = json::parse(read_text(DELTARING_SOURCE_DIR "/tests/golden/tokenizer_vectors.json"));
  return root;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

void append_code_point(int32_t point, std::string& text) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(point, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

// NFC by the library's own whole-string function.
std::string library_nfc(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(n));
  std::free(out);
  return result;
}

void expect_vectors(const char* section, size_t at_least, const Tokenizer& tokenizer, bool parse_special = true) {
  const json& list = vectors().at(section);
  EXPECT_GE(list.size(), at_least);
  for (const json& item : list) {
    const auto text = item[0].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, parse_special), item[1].get<Ids>()) << section << ": " << item[0];
  }
}

TEST(Tokenizer, EncodesTheVectorsMadeWithTheModel) { expect_vectors("tiny", 15, qwen3_5()); }
TEST(Tokenizer, EncodesLikeTheReference) { expect_vectors("qwen3_5", 4000, qwen3_5()); }
TEST(Tokenizer, EncodesLikeTheReferenceWithTheRegexOfQwen3Next) { expect_vectors("qwen3_next", 600, qwen3_next()); }
TEST(Tokenizer, TakesSpecialTokensAsText) { expect_vectors("special_as_text", 100, qwen3_5(), false); }

TEST(Tokenizer, ReplacesInvalidUtf8LikePython) {
  const json& list = vectors().at("hex");
  EXPECT_GE(list.size(), 500u);
  for (const json& item : list) {
    EXPECT_EQ(qwen3_5().encode(from_hex(item[0].get<std::string>())), item[1].get<Ids>()) << item[0];
  }
}

TEST(Tokenizer, TreatsEveryAssignedCodePointLikeTheReference) {
  const auto hash = [](const Ids& ids) {
    uint64_t value = 0xcbf29ce484222325;
    for (const int32_t id : ids) value = (value ^ static_cast<uint64_t>(id)) * 0x100000001b3;
    return fmt::format("{:016x}", value);
  };
  int64_t count = 0;
  for (const json& block : vectors().at("sweep")) {
    const auto ranges = block[0].get<std::vector<int32_t>>();
    std::string text;
    for (size_t r = 0; r + 1 < ranges.size(); r += 2) {
      for (int32_t point = ranges[r]; point <= ranges[r + 1]; point++, count++) {
        std::string c;
        append_code_point(point, c);
        text += "a" + c + "b1" + c + " " + c + "\u0301" + c + c + "\n'" + c + " \u0323\u0301" + c + ".";
      }
    }
    EXPECT_EQ(hash(qwen3_5().encode(text)), block[1]) << "from U+" << std::hex << ranges[0];
    EXPECT_EQ(hash(qwen3_next().encode(text)), block[2]) << "from U+" << std::hex << ranges[0];
  }
  EXPECT_GT(count, 140000);
}

TEST(Tokenizer, DecodesToTheNormalizedText) {
  int compared = 0;
  for (const json& item : vectors().at("qwen3_5")) {
    const auto text = item[0].get<std::string>();
    const auto ids = item[1].get<Ids>();
    // An added token stops marks behind it from joining it.
    const bool has_added = std::any_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 4064; });
    if (has_added) continue;
    EXPECT_EQ(qwen3_5().decode(qwen3_5().encode(text)), nfc(text)) << item[0];
    compared++;
  }
  EXPECT_GT(compared, 3500);
}

TEST(Nfc, IsThatOfTheLibrary) {
  for (const json& item : vectors().at("qwen3_5")) {
    const auto text = item[0].get<std::string>();
    if (text.find("\u11A7") != text.npos) continue;
    EXPECT_EQ(nfc(text), library_nfc(text)) << item[0];
  }
}

// The library drops U+11A7 after a syllable without trailing consonant.
TEST(Nfc, KeepsTheCodePointBeforeTheTrailingConsonants) {
  EXPECT_EQ(nfc("\uAC00\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(nfc("\u1100\u1161\u11A7\u11A8"), "\uAC00\u11A7\u11A8");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");
}

TEST(Tokenizer, KeepsNul) {
  const std::string text("\0a\0\u0301\0", 7);
  EXPECT_EQ(qwen3_5().decode(qwen3_5().encode(text)), text);
  EXPECT_EQ(nfc(std::string("e\u0301\0e\u0301", 7)), std::string("\u00e9\0\u00e9", 5));
}

TEST(Tokenizer, SkipsSpecialTokensOnly) {
  const Ids ids = qwen3_5().encode("<|im_start|>a<think>b</think><|im_end|>");
  EXPECT_EQ(qwen3_5().decode(ids), "<|im_start|>a<think>b</think><|im_end|>");
  EXPECT_EQ(qwen3_5().decode(ids, true), "a<think>b</think>");
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer& tokenizer = qwen3_5();
  EXPECT_EQ(tokenizer.size(), 4090);
  EXPECT_EQ(tokenizer.find("<|im_end|>"), 4066);
  EXPECT_EQ(tokenizer.find("\n"), 198);
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.bytes(198), "\n");
  EXPECT_EQ(tokenizer.bytes(4088), "<think>");
  EXPECT_TRUE(tokenizer.is_special(4066));
  EXPECT_FALSE(tokenizer.is_special(4088));
  for (const int32_t id : {-1, 4090, 1 << 30}) {
    EXPECT_EQ(tokenizer.bytes(id), "");
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_EQ(tokenizer.decode(Ids{id, 64, id}), "a");
  }
  for (int32_t id = 0; id < tokenizer.size(); id++) EXPECT_EQ(tokenizer.find(tokenizer.bytes(id)), id);
}

TEST(Tokenizer, LongRunsTakeNoTime) {
  const std::string units[] = {"a", " ", "\n", " \r\n\t\u3000", "<", "<|im_start|", "\u0301\u0323"};
  for (const std::string& unit : units) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    // Processor time, so that a busy machine does not count. Anything quadratic takes hours.
    const std::clock_t start = std::clock();
    const Ids ids = qwen3_5().encode(text);
    EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC) << json(unit);
    EXPECT_TRUE(qwen3_5().decode(ids) == nfc(text)) << json(unit);
  }
}

TEST(Tokenizer, ServesManyThreads) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& mine : wrong) {
    threads.emplace_back([&mine] {
      for (const json& item : vectors().at("qwen3_next"))
        mine += qwen3_next().encode(item[0].get<std::string>()) != item[1].get<Ids>();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

// Pieces of a stream are whole code points and add up to decode(), whatever the ids.
void expect_stream(const Ids& ids, bool skip_special) {
  StreamDecoder stream(qwen3_5(), skip_special);
  std::string text;
  for (size_t i = 0; i <= ids.size(); i++) {
    const std::string piece = i < ids.size() ? stream.push(ids[i]) : stream.finish();
    EXPECT_EQ(replace_invalid(piece), piece);
    text += piece;
  }
  EXPECT_EQ(text, qwen3_5().decode(ids, skip_special));
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, AddsUpToDecode) {
  for (const char* section : {"tiny", "qwen3_5", "hex"}) {
    for (const json& item : vectors().at(section)) expect_stream(item[1].get<Ids>(), false);
  }
}

TEST(StreamDecoder, AddsUpToDecodeForAnyIds) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; round++) {
    Ids ids(1 + random() % 12);
    // Mostly single bytes, so that code points are begun, cut and broken in every way.
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (random() % 4 ? 256 : 4100)) - 1;
    expect_stream(ids, round % 2 == 0);
  }
}

TEST(StreamDecoder, HoldsBackIncompleteCodePoints) {
  const auto id = [](std::string_view bytes) { return qwen3_5().find(bytes).value(); };
  StreamDecoder stream(qwen3_5());
  EXPECT_EQ(stream.push(id("\xf0")), "");
  EXPECT_EQ(stream.push(id("\x9f")), "");
  EXPECT_EQ(stream.push(id("\x98")), "");
  EXPECT_EQ(stream.push(id("\x80")), "\U0001F600");
  EXPECT_EQ(stream.push(id("\xe2")), "");
  EXPECT_EQ(stream.push(id("a")), "\uFFFDa");
  EXPECT_EQ(stream.push(id("\xe2")), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.push(id("b")), "b");
}

}  // namespace
}  // namespace deltaring
