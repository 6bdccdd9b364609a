// What a tokenizer.json of the Qwen family holds, checked: everything in it is implemented here or refused by name.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/bpe.h"

namespace deltaring {

struct AddedToken {
  int32_t id;
  bool special;  // left out by skip_special
  std::string text;
};

struct TokenizerFile {
  std::vector<std::string> tokens;  // raw bytes by id, without gaps; of an added token its text
  std::vector<AddedToken> added;
  std::array<int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;  // lowest rank first
  std::string regex;             // of the pre-tokenizer
};

// `where` names the file in messages. Throws Error(unsupported) naming what is not implemented and what is, and
// Error(corrupt) naming what is missing or contradicts itself.
TokenizerFile parse_tokenizer_file(std::string_view json_text, const std::string& where);

}  // namespace deltaring
