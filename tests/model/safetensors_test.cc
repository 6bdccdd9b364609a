#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "loader_testing.h"

namespace deltaring {
namespace {

using testing::as_bytes;
using testing::expect_error;
using testing::json;
using testing::raw_safetensors;
using testing::read_file;
using testing::ScratchFolder;

json entry(const char* dtype, std::vector<int64_t> shape, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

// Header padded so that the data is aligned to 8 bytes.
std::string file_with(const json& header, size_t data_bytes) {
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return raw_safetensors(text, std::string(data_bytes, '\x11'));
}

void expect_corrupt(const std::string& file, const std::vector<std::string>& parts) {
  std::vector<std::string> all = parts;
  all.push_back("model.safetensors");
  expect_error(ErrorKind::corrupt, all, [&] { SafeTensors::from_bytes(as_bytes(file), "model.safetensors"); });
}

TEST(SafeTensors, ReadsWhatTheFormatAllows) {
  const json header = {{"__metadata__", {{"format", "pt"}}},      {"a", entry("F32", {2, 3}, 0, 24)},
                       {"empty", entry("BF16", {0, 7}, 24, 24)},  {"foreign", entry("I64", {2}, 24, 40)},
                       {"half", entry("F16", {1, 1, 3}, 40, 46)}, {"scalar", entry("BF16", {}, 46, 48)},
                       {"packed", entry("F4", {4}, 48, 50)}};
  const std::string file = file_with(header, 50);
  const SafeTensors tensors = SafeTensors::from_bytes(as_bytes(file), "x");
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "empty", "foreign", "half", "packed", "scalar"}));
  EXPECT_EQ(tensors.find("b"), nullptr);
  const TensorRef& a = *tensors.find("a");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.bytes, 24u);
  EXPECT_EQ(a.data, file.data() + file.size() - 50);
  EXPECT_TRUE(a.foreign_dtype.empty());
  EXPECT_EQ(tensors.find("foreign")->foreign_dtype, "I64");
  EXPECT_EQ(tensors.find("half")->dtype, DType::f16);
  EXPECT_EQ(tensors.find("scalar")->bytes, 2u);
  EXPECT_EQ(tensors.find("empty")->bytes, 0u);
}

TEST(SafeTensors, DamagedLengthOrHeader) {
  expect_corrupt("", {"0 bytes are too few"});
  expect_corrupt("1234567", {"7 bytes are too few"});
  expect_corrupt(std::string(8, '\xff') + "{}", {"a header of 18446744073709551615 bytes does not fit"});
  expect_corrupt(std::string("\x03\0\0\0\0\0\0\0", 8) + "{}", {"a header of 3 bytes does not fit the file of 10"});
  expect_corrupt(raw_safetensors("{\"a\":", ""), {"header: not valid JSON at byte 6"});
  expect_corrupt(raw_safetensors("{} {}   ", ""), {"not valid JSON at byte 4"});
  expect_corrupt(raw_safetensors("[]      ", ""), {"not an object"});
  expect_corrupt(raw_safetensors(R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                                 R"("w":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
                                 "1234"),
                 {"\"w\" occurs twice"});
}

TEST(SafeTensors, TruncatedAnywhere) {
  const std::string file = file_with({{"a", entry("F32", {4}, 0, 16)}, {"b", entry("BF16", {2}, 16, 20)}}, 20);
  ASSERT_NO_THROW(SafeTensors::from_bytes(as_bytes(file), "x"));
  for (size_t size = 0; size < file.size(); size++) expect_corrupt(file.substr(0, size), {});
  expect_corrupt(file.substr(0, file.size() - 1), {"tensor b", "data_offsets [16, 20] leave the 19 bytes"});
  expect_corrupt(file + "x", {"bytes [20, 21) at the end"});
}

TEST(SafeTensors, ContradictoryEntries) {
  const auto one = [](const json& value, size_t bytes) { return file_with({{"w", value}}, bytes); };
  expect_corrupt(one(entry("Q4_K", {4}, 0, 16), 16), {"tensor w", "dtype is Q4_K", "usable: F32, BF16, F16"});
  expect_corrupt(one(entry("F32", {5}, 0, 16), 16), {"tensor w", "hold 16 bytes", "[5] of F32 takes 20"});
  expect_corrupt(one(entry("F32", {4}, 16, 0), 16), {"tensor w", "data_offsets [16, 0]"});
  expect_corrupt(one(entry("F32", {4}, 0, 20), 16), {"tensor w", "leave the 16 bytes"});
  expect_corrupt(one(entry("F32", {-4}, 0, 16), 16), {"tensor w", "shape is -4"});
  expect_corrupt(one(entry("F32", {int64_t{1} << 40, int64_t{1} << 40}, 0, 16), 16), {"tensor w", "below 2^60"});
  expect_corrupt(one(entry("F4", {3}, 0, 1), 1), {"tensor w", "whole bytes"});
  expect_corrupt(one(3, 0), {"tensor w", "expected an object, found 3"});
  expect_corrupt(one(json::object(), 0), {"tensor w", "dtype is missing"});
  expect_corrupt(one({{"dtype", "F32"}, {"shape", 4}, {"data_offsets", {0, 16}}}, 16), {"shape is 4, expected a list"});
  expect_corrupt(one({{"dtype", "F32"}, {"shape", {4}}}, 16), {"data_offsets is missing"});
  expect_corrupt(one({{"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {16}}}, 16), {"expected [begin, end]"});
  expect_corrupt(one({{"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {0.0, 16.5}}}, 16), {"data_offsets is 0.0"});
}

TEST(SafeTensors, OverlapsAndHoles) {
  expect_corrupt(file_with({{"a", entry("F32", {2}, 0, 8)}, {"b", entry("F32", {2}, 4, 12)}}, 12),
                 {"tensors a and b overlap", "[0, 8] and [4, 12]"});
  expect_corrupt(file_with({{"a", entry("F32", {2}, 0, 8)}, {"b", entry("F32", {2}, 0, 8)}}, 8), {"overlap"});
  expect_corrupt(file_with({{"a", entry("F32", {1}, 0, 4)}, {"b", entry("F32", {1}, 8, 12)}}, 12),
                 {"bytes [4, 8) of the data, before b"});
  expect_corrupt(file_with({{"a", entry("F32", {1}, 4, 8)}}, 8), {"bytes [0, 4)"});
}

TEST(SafeTensors, UnalignedDataIsRefused) {
  std::string text = json{{"w", entry("F32", {1}, 0, 4)}}.dump();
  text.resize((text.size() + 7) / 8 * 8 + 1, ' ');
  expect_corrupt(raw_safetensors(text, "1234"), {"tensor w", "not aligned", "multiple of 8"});
}

TEST(SafeTensors, NamesInMessagesAreTame) {
  const std::string name = "\x1b[31m" + std::string(5000, 'n');
  try {
    SafeTensors::from_bytes(as_bytes(file_with({{name, 3}}, 0)), "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_LT(std::strlen(e.what()), 400u);
    EXPECT_EQ(std::string_view(e.what()).find('\x1b'), std::string_view::npos);
  }
}

TEST(SafeTensors, Folder) {
  const ScratchFolder folder;
  expect_error(ErrorKind::not_found, {"neither model.safetensors nor model.safetensors.index.json"},
               [&] { SafeTensors::open(folder.path()); });
  expect_error(ErrorKind::not_found, {"absent does not exist"}, [&] { SafeTensors::open(folder.path() / "absent"); });
  folder.write("model.safetensors", file_with({{"a", entry("F32", {2}, 0, 8)}}, 8));
  EXPECT_NE(SafeTensors::open(folder.path()).find("a"), nullptr);
  EXPECT_NE(SafeTensors::open_file(folder.path() / "model.safetensors").find("a"), nullptr);
  expect_error(ErrorKind::invalid_argument, {"is a file"},
               [&] { SafeTensors::open(folder.path() / "model.safetensors"); });
}

// rand-qwen3_5-dense cut into three shards, round robin.
class Shards : public ::testing::Test {
 protected:
  Shards() : whole_(SafeTensors::open(testing::rand_dense())) {
    const auto names = whole_.names();
    for (size_t i = 0; i < names.size(); i++) shard_names_[i % 3].push_back(names[i]);
    for (size_t s = 0; s < 3; s++) {
      folder_.write(shard(s), testing::safetensors_of(whole_, shard_names_[s]));
      for (const auto& name : shard_names_[s]) index_["weight_map"][name] = shard(s);
    }
    write_index();
  }
  static std::string shard(size_t s) { return "model-0000" + std::to_string(s + 1) + "-of-00003.safetensors"; }
  void write_index() { folder_.write("model.safetensors.index.json", index_.dump()); }
  SafeTensors open() { return SafeTensors::open(folder_.path()); }

  ScratchFolder folder_;
  SafeTensors whole_;
  std::vector<std::string> shard_names_[3];
  json index_ = {{"metadata", {{"total_size", 1}}}};
};

TEST_F(Shards, EqualTheWholeFile) {
  const SafeTensors shards = open();
  ASSERT_EQ(shards.names(), whole_.names());
  for (const auto& name : whole_.names()) {
    const TensorRef &a = *whole_.find(name), &b = *shards.find(name);
    EXPECT_EQ(a.shape, b.shape) << name;
    ASSERT_EQ(a.bytes, b.bytes) << name;
    EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes), 0) << name;
  }
}

TEST_F(Shards, MissingShard) {
  testing::fs::remove(folder_.path() / shard(1));
  expect_error(ErrorKind::not_found, {"names the shard " + shard(1), "missing"}, [&] { open(); });
}

TEST_F(Shards, TruncatedShard) {
  const std::string file = read_file(folder_.path() / shard(2));
  folder_.write(shard(2), std::string_view(file).substr(0, file.size() / 2));
  expect_error(ErrorKind::corrupt, {shard(2), "truncated"}, [&] { open(); });
}

TEST_F(Shards, TensorNotInItsShard) {
  index_["weight_map"]["ghost"] = shard(0);
  write_index();
  expect_error(ErrorKind::corrupt, {"tensor ghost is not in " + shard(0)}, [&] { open(); });
  index_["weight_map"].erase("ghost");
  index_["weight_map"][shard_names_[0][0]] = shard(1);
  write_index();
  expect_error(ErrorKind::corrupt, {shard_names_[0][0] + " is not in " + shard(1)}, [&] { open(); });
}

TEST_F(Shards, TensorInTwoShards) {
  auto names = shard_names_[2];
  names.push_back(shard_names_[0][0]);
  folder_.write(shard(2), testing::safetensors_of(whole_, names));
  expect_error(ErrorKind::corrupt, {shard_names_[0][0] + " is in two shards, " + shard(0) + " and " + shard(2)},
               [&] { open(); });
}

TEST_F(Shards, TensorNotInTheIndex) {
  index_["weight_map"].erase(shard_names_[1][0]);
  write_index();
  expect_error(ErrorKind::corrupt, {shard_names_[1][0] + " of " + shard(1) + " is not in the index"}, [&] { open(); });
}

TEST_F(Shards, ShardNamesStayInTheFolder) {
  for (const json& name : {json("../model.safetensors"), json("/etc/passwd"), json(".."), json(""), json("a\\b"),
                           json(std::string("a\0b", 3)), json(7)}) {
    index_["weight_map"][shard_names_[0][0]] = name;
    write_index();
    expect_error(ErrorKind::corrupt, {shard_names_[0][0], "expected the name of a file in this folder"},
                 [&] { open(); });
  }
}

TEST_F(Shards, DamagedIndex) {
  for (const char* text : {"{}", "{\"weight_map\": {}}", "{\"weight_map\": [1]}"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_error(ErrorKind::corrupt, {"model.safetensors.index.json: weight_map is"}, [&] { open(); });
  }
  folder_.write("model.safetensors.index.json", "{\"weight_map\"");
  expect_error(ErrorKind::corrupt, {"model.safetensors.index.json: not valid JSON at byte 14"}, [&] { open(); });
}

}  // namespace
}  // namespace deltaring
