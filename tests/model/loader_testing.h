// What the loader tests share: scratch folders, hand-made safetensors files, sources that lie, expected errors.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/tensor_source.h"

namespace deltaring::testing {

namespace fs = std::filesystem;
using nlohmann::json;

inline fs::path tiny_py() { return fs::path(DELTARING_SOURCE_DIR) / "models/tiny-py"; }
inline fs::path rand_dense() { return fs::path(DELTARING_SOURCE_DIR) / "tests/golden/rand-qwen3_5-dense"; }

// A folder of the running test's own, gone with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "deltaring-loader-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~ScratchFolder() { fs::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const fs::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }

 private:
  fs::path path_;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs `call`, which must throw Error of that kind with every one of `parts` in its message.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    for (const auto& part : parts) EXPECT_NE(std::string_view(e.what()).find(part), std::string_view::npos) << e.what();
    return;
  }
  ADD_FAILURE() << "nothing thrown, expected an error about " << (parts.empty() ? "?" : parts[0]);
}

// The bytes of a safetensors file with that header text and data, however wrong.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; i++) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  return file + header + data;
}

// A valid file with the given tensors of `source`, header padded to a multiple of 8.
inline std::string safetensors_of(const TensorSource& source, const std::vector<std::string>& names) {
  json header = json::object();
  std::string data;
  for (const std::string& name : names) {
    const TensorRef& t = *source.find(name);
    const char* dtype = t.dtype == DType::f32 ? "F32" : t.dtype == DType::bf16 ? "BF16" : "F16";
    data.resize((data.size() + 3) / 4 * 4);
    const size_t begin = data.size();
    data.append(static_cast<const char*>(t.data), t.bytes);
    header[name] = {{"dtype", dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return raw_safetensors(text, data);
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Tensors by name, whoever holds them.
struct TensorMap : TensorSource {
  std::map<std::string, TensorRef, std::less<>> tensors;

  const TensorRef* find(std::string_view name) const override {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> list;
    for (const auto& [name, tensor] : tensors) list.push_back(name);
    return list;
  }
};

// Another source's tensors, to be renamed, dropped or changed by a test.
struct EditedSource : TensorMap {
  explicit EditedSource(const TensorSource& base) {
    for (const std::string& name : base.names()) tensors[name] = *base.find(name);
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
};

// A flat config of a model that is small in every direction.
inline json small_config() {
  return {{"model_type", "qwen3_5_text"},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"vocab_size", 16},
          {"num_hidden_layers", 2},
          {"full_attention_interval", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"linear_num_key_heads", 1},
          {"linear_num_value_heads", 2},
          {"linear_key_head_dim", 4},
          {"linear_value_head_dim", 4},
          {"linear_conv_kernel_dim", 4},
          {"max_position_embeddings", 64},
          {"mtp_num_hidden_layers", 1},
          {"eos_token_id", 1},
          {"tie_word_embeddings", true},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}}}};
}

}  // namespace deltaring::testing
