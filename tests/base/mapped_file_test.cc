#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace deltaring {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = (fs::temp_directory_path() / "deltaring-map-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  fs::path folder_;
};

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void expect_not_found(const fs::path& path, std::string_view reason) {
  try {
    const MappedFile file(path);
    ADD_FAILURE() << path << " was mapped";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::not_found);
    EXPECT_NE(std::string_view(e.what()).find(path.string()), std::string_view::npos) << e.what();
    EXPECT_NE(std::string_view(e.what()).find(reason), std::string_view::npos) << e.what();
  }
}

TEST_F(MappedFileTest, ShowsTheBytes) {
  for (const size_t size : {1, 4095, 4096, 4097, 100000}) {
    std::string content(size, '\0');
    for (size_t i = 0; i < size; i++) content[i] = static_cast<char>(i * 31 + i / 256);
    const MappedFile file(write("data", content));
    EXPECT_EQ(text_of(file), content) << size;
  }
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) { EXPECT_TRUE(MappedFile(write("empty", "")).bytes().empty()); }

TEST_F(MappedFileTest, OutlivesTheName) {
  const fs::path path = write("data", "still here");
  const MappedFile file(path);
  fs::remove(path);
  EXPECT_EQ(text_of(file), "still here");
}

TEST_F(MappedFileTest, FollowsLinks) {
  fs::create_symlink(write("data", "linked"), folder_ / "link");
  EXPECT_EQ(text_of(MappedFile(folder_ / "link")), "linked");
}

TEST_F(MappedFileTest, NamesWhatCannotBeOpened) {
  expect_not_found(folder_ / "nothing", "No such file");
  expect_not_found(folder_, "regular");
  expect_not_found(write("data", "x") / "below", "Not a directory");
  fs::create_symlink(folder_ / "nothing", folder_ / "dangling");
  expect_not_found(folder_ / "dangling", "No such file");
}

// A pipe in a model folder must be refused, not waited on.
TEST_F(MappedFileTest, DoesNotWaitForAPipe) {
  const fs::path path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  auto refusal = std::async(std::launch::async, [&] { expect_not_found(path, "regular"); });
  const bool answered = refusal.wait_for(std::chrono::seconds(2)) == std::future_status::ready;
  EXPECT_TRUE(answered);
  if (!answered) close(open(path.c_str(), O_RDWR | O_NONBLOCK));
  refusal.wait();
}

TEST_F(MappedFileTest, Moves) {
  MappedFile first(write("a", "first"));
  const std::byte* const data = first.bytes().data();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_TRUE(first.bytes().empty());
  MappedFile third(write("b", "third"));
  third = std::move(second);
  EXPECT_EQ(text_of(third), "first");
}

}  // namespace
}  // namespace deltaring
