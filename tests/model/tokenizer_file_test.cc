// What a tokenizer.json may hold: every refusal names the thing.
#include "model/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/json_fields.h"
#include "model/tokenizer.h"

namespace deltaring {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;
using testing::HasSubstr;

// A tokenizer.json of the 256 bytes, four merges and two added tokens.
json make_small_json() {
  json root = json::parse(read_text(DELTARING_SOURCE_DIR "/models/tiny-py/tokenizer.json"));
  json vocab = json::object();
  for (const auto& [token, id] : root["model"]["vocab"].items()) {
    if (id < 260) vocab[token] = id;
  }
  json& merges = root["model"]["merges"];
  json kept = json::array();
  for (const json& merge : merges) {
    if (kept.size() < 4) kept.push_back(merge);
  }
  root["model"]["vocab"] = vocab;
  merges = kept;
  json added = {root["added_tokens"][0], root["added_tokens"][1]};
  added[0]["id"] = 260;
  added[1]["id"] = 261;
  root["added_tokens"] = added;
  return root;
}

const json& small_json() {
  static const json root = make_small_json();
  return root;
}

void expect_error(const std::string& text, ErrorKind kind, const std::string& part) {
  try {
    Tokenizer::parse(text, "some.json");
    ADD_FAILURE() << "accepted, although it should have said: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), HasSubstr("some.json"));
  }
}

struct Edit {
  const char* pointer;
  const char* value;  // JSON
  const char* message;
};

void expect_edit(const Edit& edit, ErrorKind kind) {
  json root = small_json();
  root[json::json_pointer(edit.pointer)] = json::parse(edit.value);
  expect_error(root.dump(), kind, edit.message);
}

TEST(TokenizerFile, AcceptsTheSmallFileInEveryPublishedStyle) {
  json root = small_json();
  const Ids ids = Tokenizer::parse(root.dump(), "small").encode("a    <|im_start|>");
  EXPECT_EQ(ids.back(), 261);
  EXPECT_LT(ids.size(), 6u);
  for (json& merge : root["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  root["model"]["continuing_subword_prefix"] = "";
  root["model"]["end_of_word_suffix"] = "";
  root["model"].erase("ignore_merges");
  root["post_processor"] = nullptr;
  EXPECT_EQ(Tokenizer::parse(root.dump(), "small").encode("a    <|im_start|>"), ids);
}

TEST(TokenizerFile, RefusesByNameWhatItDoesNotDo) {
  const Edit edits[] = {
      {"/version", R"("2.0")", R"(version is "2.0"; supported is "1.0")"},
      {"/truncation", R"({"max_length":5})", "truncation"},
      {"/padding", R"({"strategy":"Fixed"})", "padding"},
      {"/normalizer", "null", R"(normalizer/type is null; supported is "NFC")"},
      {"/normalizer/type", R"("NFKC")", R"(normalizer/type is "NFKC")"},
      {"/pre_tokenizer/type", R"("Whitespace")", "pre_tokenizer/type"},
      {"/pre_tokenizer/pretokenizers/0/type", R"("Digits")", R"("Digits")"},
      {"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")", "behavior"},
      {"/pre_tokenizer/pretokenizers/0/invert", "true", "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", R"({"String":" "})", "pattern/String"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\p{N}{1,3}|x")", R"(\p{N}{1,3}|x)"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex"},
      {"/pre_tokenizer/pretokenizers/2", R"({"type":"Punctuation"})", "pretokenizers/2"},
      {"/post_processor/type", R"("TemplateProcessing")", "post_processor"},
      {"/decoder/type", R"("WordPiece")", "decoder"},
      {"/model/type", R"("Unigram")", "model/type"},
      {"/model/dropout", "0.1", "model/dropout is 0.1; supported is null"},
      {"/model/unk_token", R"("<unk>")", "unk_token"},
      {"/model/continuing_subword_prefix", R"("##")", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
      {"/model/fuse_unk", "true", "fuse_unk"},
      {"/model/byte_fallback", "true", "byte_fallback"},
      {"/model/ignore_merges", "true", "ignore_merges"},
      {"/model/scores", "[]", "unknown key scores"},
      {"/extra", "1", "unknown key extra"},
      {"/added_tokens/0/single_word", "true", "single_word is true"},
      {"/added_tokens/0/lstrip", "true", "lstrip is true"},
      {"/added_tokens/0/rstrip", "true", "rstrip is true"},
      {"/added_tokens/0/normalized", "true", "normalized is true"},
      {"/added_tokens/0/color", "1", "unknown key color"},
  };
  for (const Edit& edit : edits) expect_edit(edit, ErrorKind::unsupported);
}

TEST(TokenizerFile, NamesWhatIsCorrupt) {
  const Edit edits[] = {
      {"/model", "null", "model is missing"},
      {"/model", "[]", "model is []"},
      {"/model/vocab", "[]", "vocab is []"},
      {"/model/vocab", "null", "vocab is missing"},
      {"/model/merges", "null", "merges is missing"},
      {"/model/merges", "{}", "merges is {}"},
      {"/added_tokens", "null", "added_tokens is missing"},
      {"/model/vocab/a", "-1", "the id of a is -1"},
      {"/model/vocab/a", "64.5", "the id of a is 64.5"},
      {"/model/vocab/a", "99999999999", "the id of a is 99999999999"},
      {"/model/vocab/a", R"("64")", R"(the id of a is "64")"},
      {"/model/vocab/a", "5000", "the id of a is 5000"},
      {"/model/vocab/a", "65", "the id 65 belongs to"},
      {"/model/merges/1", R"(["a","nothing"])", "needs the token nothing"},
      {"/model/merges/1", R"(["q","z"])", "needs the token qz"},
      {"/model/merges/1", R"("a b c")", "is not a merge"},
      {"/model/merges/1", R"("ab")", "is not a merge"},
      {"/model/merges/1", R"(["a"])", "is not a merge"},
      {"/model/merges/1", "7", "is not a merge"},
      {"/added_tokens/1/id", "260", "the id 260 belongs to"},
      {"/added_tokens/1/id", "70", "the id 70 belongs to"},
      {"/added_tokens/1/id", "262", "262"},
      {"/added_tokens/1/id", "-4", "id is -4"},
      {"/added_tokens/1/id", "null", "id is missing"},
      {"/added_tokens/1/content", R"("")", "content is missing or empty"},
      {"/added_tokens/1/content", "5", "content is 5"},
      {"/added_tokens/1/content", R"("<|endoftext|>")", "listed twice"},
      {"/added_tokens/1/content", R"("a")", "its id in vocab is 64"},
      {"/added_tokens/1", "3", "expected an object"},
      {"/added_tokens/1/special", R"("yes")", "special"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "{}", "pattern.Regex"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "1", "pattern.Regex"},
  };
  for (const Edit& edit : edits) expect_edit(edit, ErrorKind::corrupt);
}

TEST(TokenizerFile, NamesTheByteThatIsMissing) {
  json root = small_json();
  root["model"]["vocab"].erase("z");
  root["model"]["vocab"]["zz"] = 89;
  expect_error(root.dump(), ErrorKind::corrupt, "no token for the byte 0x7a");
}

TEST(TokenizerFile, SurvivesTextThatIsNoJson) {
  const std::string good = small_json().dump();
  expect_error("", ErrorKind::corrupt, "not valid JSON");
  expect_error("[]", ErrorKind::corrupt, "expected an object");
  expect_error(good.substr(0, good.size() / 2), ErrorKind::corrupt, "not valid JSON");
  expect_error(std::string(1000000, '['), ErrorKind::corrupt, "nested");
  expect_error("{\"version\": \"\xff\"}", ErrorKind::corrupt, "not valid JSON");
  expect_error(R"({"version": "\ud800"})", ErrorKind::corrupt, "not valid JSON");
  expect_error(std::string("\0\0\0", 3), ErrorKind::corrupt, "not valid JSON");
}

TEST(TokenizerFile, EveryTruncationIsRefused) {
  json root = small_json();
  const std::string good = root.dump();
  for (size_t size = 0; size < good.size(); size += 97) {
    EXPECT_THROW(Tokenizer::parse(good.substr(0, size), "cut"), Error) << size;
  }
}

TEST(TokenizerFile, MissingFileIsNotFound) {
  try {
    Tokenizer::load(DELTARING_SOURCE_DIR "/models/no-such-model/tokenizer.json");
    ADD_FAILURE() << "loaded a missing file";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
    EXPECT_THAT(error.what(), HasSubstr("no-such-model"));
  }
}

TEST(TokenizerFile, AddedTokenIsLongestFirst) {
  json root = small_json();
  root["added_tokens"][0]["content"] = "<x";
  root["added_tokens"][1]["content"] = "<xyz>";
  const Tokenizer tokenizer = Tokenizer::parse(root.dump(), "small");
  EXPECT_EQ(tokenizer.encode("<xyz><x<xyz"), (Ids{261, 260, 260, *tokenizer.find("y"), *tokenizer.find("z")}));
}

}  // namespace
}  // namespace deltaring
