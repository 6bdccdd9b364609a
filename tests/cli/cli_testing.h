// What the CLI tests share: running the binary on the embedded model, and folders that are wrong in one way.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "model/loader_testing.h"
#include "model/utf8.h"
#include "support/process.h"

namespace deltaring::test {

using testing::json;
using testing::read_file;
using testing::ScratchFolder;
using testing::tiny_py;

using Words = std::vector<std::string>;

inline ProcessResult cli(Words words, const ProcessOptions& o = {}) {
  words.insert(words.begin(), DELTARING_CLI);
  return run_process(words, o);
}

// `command -m tiny-py words`. One thread, unless a test says otherwise: tests run side by side.
inline ProcessResult on_tiny(const std::string& command, const Words& words, const ProcessOptions& o = {}) {
  Words all{command, "-m", tiny_py().string()};
  const bool runs =
      command != "inspect" && command != "plan" && std::find(words.begin(), words.end(), "--threads") == words.end();
  if (runs) all.insert(all.end(), {"--threads", "1"});
  all.insert(all.end(), words.begin(), words.end());
  return cli(all, o);
}

// The same with ^C while it works. Before the model is loaded that ends the process, so a later one is tried.
inline ProcessResult interrupted_on_tiny(const std::string& command, const Words& words) {
  for (int ms = 100;; ms *= 2) {
    const ProcessResult r = on_tiny(command, words, {.interrupt_after_ms = ms});
    if (r.exit_code != -SIGINT || ms > 10000) return r;
  }
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

// Lower case, and one spelling of a name: top_p and --top-p are the same to a reader.
inline std::string folded(std::string text) {
  for (char& c : text) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// A refusal: exit code 2, nothing on standard output, and on standard error one line of error behind at most some
// notices. It names all of `names`.
inline void expect_refused(const ProcessResult& r, const Words& names, const std::string& where) {
  EXPECT_EQ(r.exit_code, 2) << where << "\n" << r.err;
  EXPECT_TRUE(r.out.empty()) << where << "\n" << r.out.substr(0, 200);
  EXPECT_TRUE(std::regex_match(r.err, std::regex("(notice: [^\n]*\n)*error: [^\n]+\n"))) << where << "\n" << r.err;
  for (const std::string& name : names)
    EXPECT_TRUE(folded(r.err).find(folded(name)) != std::string::npos) << where << " names " << name << ": " << r.err;
  for (const char* trace : {"terminate", "what():", "std::", ".cc:"})
    EXPECT_TRUE(r.err.find(trace) == std::string::npos) << where << "\n" << r.err;
}

// The last "N works" of a message; 0 without one, which never works.
inline std::string value_that_works(const std::string& message) {
  static const std::regex pattern("([0-9]+) works");
  std::string value = "0";
  for (std::sregex_iterator it(message.begin(), message.end(), pattern), end; it != end; ++it) value = (*it)[1];
  return value;
}

inline bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = first_unit(text.substr(at));
    if (unit.kind != Utf8::valid) return false;
    at += unit.length;
  }
  return true;
}

// A copy of the embedded model, or of another folder, that a test breaks; the weights are a link.
class ModelCopy {
 public:
  explicit ModelCopy(const std::filesystem::path& whole = tiny_py()) : whole_(whole) {
    for (const auto& file : std::filesystem::directory_iterator(whole)) {
      const auto target = folder_.path() / file.path().filename();
      if (file.path().extension() == ".safetensors")
        std::filesystem::create_symlink(file.path(), target);
      else
        std::filesystem::copy_file(file.path(), target);
    }
  }

  std::string path() const { return folder_.path().string(); }
  void remove(const std::string& name) const { std::filesystem::remove(folder_.path() / name); }
  void write(const std::string& name, const std::string& content) const {
    remove(name);
    folder_.write(name, content);
  }
  void edit_config(const std::function<void(json&)>& change) const {
    json config = json::parse(read_file(folder_.path() / "config.json"));
    change(config);
    write("config.json", config.dump());
  }
  // The weights with their header and data changed in place.
  void edit_weights(const std::function<void(json& header, std::string& data)>& change) const {
    const std::string file = read_file(whole_ / "model.safetensors");
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | static_cast<unsigned char>(file[static_cast<size_t>(i)]);
    json header = json::parse(file.substr(8, length));
    std::string data = file.substr(8 + length);
    change(header, data);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    write("model.safetensors", testing::raw_safetensors(text, data));
  }

 private:
  const std::filesystem::path whole_;
  ScratchFolder folder_;
};

}  // namespace deltaring::test
