// Cases of tests/malformed.md that are whole files, folders or surroundings: the exit code of
// ckpt-inspect, and what it says. Each case is written to a folder of its own, called "t" here.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/archives.h"
#include "tests/support/program.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::archive_around;
using test_support::archive_of;
using test_support::ArchiveRecord;
using test_support::Outcome;
using test_support::PickleText;
using test_support::run_program;
using test_support::ScratchDirectory;
using Method = ArchiveRecord::Method;

// What was said, with "t" for the path of the folder.
Outcome inspect(const ScratchDirectory& folder, const std::string& file,
                std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), folder / file);
  Outcome run = run_program("ckpt-inspect", flags);
  for (std::string* text : {&run.out, &run.err})
    for (auto at = text->find(folder.path()); at != text->npos; at = text->find(folder.path()))
      text->replace(at, folder.path().size(), "t");
  return run;
}

void write(const std::string& path, ByteView bytes) {
  std::ofstream(path, std::ios::binary) << formats::text_of(bytes);
}

Outcome inspect_torch(const ByteVector& archive, std::vector<std::string> flags = {}) {
  const ScratchDirectory folder;
  write(folder / "c.pt", archive);
  return inspect(folder, "c.pt", std::move(flags));
}

void expect_refused(const Outcome& run, int exit, const std::string& says) {
  EXPECT_EQ(run.exit, exit);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err, "ckpt-inspect: error: " + says + "\n");
}

// A state dict of tensors under "a", "b", ...: two bytes each of storage `key`, from `first` on.
std::string tensors(std::initializer_list<std::pair<std::string, std::int32_t>> places) {
  PickleText pickle;
  pickle.raw("}(");
  char name = 'a';
  for (const auto& [key, first] : places) {
    pickle.text(std::string(1, name++)).global("torch._utils", "_rebuild_tensor_v2");
    pickle.raw("((").text("storage").global("torch", "ByteStorage").text(key).text("cpu");
    pickle.number(8).raw("tQ").number(first).number(2).raw("\x85").number(1).raw("\x85\x89}tR");
  }
  return pickle.raw("u").done();
}

ByteVector archive_with(std::vector<ArchiveRecord> more) {
  more.push_back({"a/data.pkl", tensors({}), Method::stored});
  more.push_back({"a/version", "3\n", Method::stored});
  return archive_of(more);
}

TEST(Catalogue, P26APersistentIdOfAnotherFormIsRefused) {
  PickleText pickle;
  pickle.raw("}").text("a").global("torch._utils", "_rebuild_tensor_v2").raw("((");
  pickle.text("storage").raw("tQ").number(0).raw(")").raw(")").raw("\x89}tRs");
  expect_refused(inspect_torch(archive_around(formats::view_of(pickle.done()))), 3,
                 "t/c.pt:0: \"a\": archive/data.pkl: a persistent id that is not (storage, class, "
                 "key, location, "
                 "count)");
}

TEST(Catalogue, P27AStorageWithoutARecordIsNamed) {
  expect_refused(inspect_torch(archive_around(formats::view_of(tensors({{"9", 0}})))), 3,
                 "t/c.pt:0: \"a\": storage '9' has no record in the archive");
}

TEST(Catalogue, P30TensorsOnOneStorageAreEachShownWhole) {
  const ByteVector archive = archive_around(formats::view_of(tensors({{"0", 0}, {"0", 1}})));
  const Outcome table = inspect_torch(archive, {"--tensors"});
  EXPECT_EQ(table.exit, 0) << table.err;
  for (const char* shown : {"  a       param  U8     [2]", "  b       param  U8     [2]"})
    EXPECT_NE(table.out.find(shown), std::string::npos) << table.out;
  const Outcome page = inspect_torch(archive);
  EXPECT_NE(page.out.find("1 tensor shares its storage with another: each is shown whole"),
            std::string::npos)
      << page.out;
}

TEST(Catalogue, Z07CompressionOtherThanDeflateIsUnsupported) {
  expect_refused(inspect_torch(archive_of({{"a/data.pkl", tensors({}), Method::stored},
                                           {"a/version", "3\n", Method::bzip2}})),
                 4, "t/c.pt:143: record 'a/version' uses compression method 12");
}

TEST(Catalogue, Z11AnArchiveWithoutAVersionIsRefused) {
  expect_refused(inspect_torch(archive_of({{"a/data.pkl", tensors({}), Method::stored}})), 3,
                 "t/c.pt:0: the archive has no record 'version'");
}

TEST(Catalogue, Z11ByteOrdersAreLittleBigOrLeftOut) {
  EXPECT_EQ(inspect_torch(archive_with({})).exit, 0);
  EXPECT_EQ(inspect_torch(archive_with({{"a/byteorder", "big", Method::stored}})).exit, 0);
  expect_refused(inspect_torch(archive_with({{"a/byteorder", "pdp", Method::stored}})), 3,
                 "t/c.pt:0: record 'byteorder' is neither 'little' nor 'big'");
}

TEST(Catalogue, Z12RecordsThatAreNotAlignedAreRead) {
  const Outcome run = inspect_torch(archive_with({{"a/data/0", "abcdefgh", Method::stored}}),
                                    {"--tensors", "--digest"});
  EXPECT_EQ(run.exit, 0) << run.err;
}

const fs::path kDcp = fs::path(EBB_FIXTURES) / "dcp";

TEST(Catalogue, D02APayloadOfAnotherSaveIsNotReadAsThisOnes) {
  const ScratchDirectory folder;
  fs::copy(kDcp / "torch2.9.1_w2" / "data", folder / "c");
  fs::copy_file(kDcp / "fsdp2_w2_odd_rows_tied" / "data" / "__1_0.distcp",
                folder / "c/__1_0.distcp", fs::copy_options::overwrite_existing);
  const Outcome run = inspect(folder, "c", {"--tensors", "--digest"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_NE(run.err.find("t/c/__1_0.distcp:"), std::string::npos) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(Catalogue, D10AShardOfALargerOldWorldIsNoted) {
  const ScratchDirectory folder;
  fs::copy(kDcp / "torch2.9.1_w2" / "data", folder / "c");
  write(folder / "c/__7_0.distcp", formats::view_of("left"));
  const Outcome run = inspect(folder, "c");
  EXPECT_EQ(run.exit, 0);
  EXPECT_NE(run.out.find("__7_0.distcp is referred to by nothing: left by another save"),
            std::string::npos)
      << run.out;
}

// Longer than any file system takes: no component above 255 bytes, more than 4096 in all.
TEST(Catalogue, C05PathsThatAreTooLongAreRefusedInOneLine) {
  std::string path = "/tmp";
  while (path.size() < 6000) path += "/" + std::string(200, 'd');
  const Outcome run = run_program("ckpt-inspect", {path});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1);
  EXPECT_NE(run.err.find("File name too long"), std::string::npos) << run.err;
}

TEST(Catalogue, C05LongNamesAndNamesThatAreNoTextAreRead) {
  const ScratchDirectory folder;
  const ByteVector archive = archive_with({});
  const std::string longest(250, 'n');
  const std::vector<std::string> names = {longest, "\xff\xfe\x1b.pt"};
  for (const std::string& name : names) {
    write(folder / name, archive);
    const Outcome run = inspect(folder, name);
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_EQ(run.out.find('\x1b'), std::string::npos);
    EXPECT_EQ(run.out.find('\xff'), std::string::npos);
  }
}

TEST(Catalogue, C07ALocaleWithDecimalCommasChangesNothing) {
  const std::vector<std::string> words = {"torch/muon_adamw_state/data", "--stats"};
  const Outcome before = run_program("ckpt-inspect", words);
  ASSERT_EQ(before.exit, 0) << before.err;
  EXPECT_NE(before.out.find("0."), std::string::npos);
  setenv("LC_ALL", "de_DE.UTF-8", 1);
  const Outcome after = run_program("ckpt-inspect", words);
  unsetenv("LC_ALL");
  EXPECT_EQ(after.exit, 0);
  EXPECT_EQ(after.out, before.out);
}

TEST(Catalogue, C10TimesOfFilesMeanNothing) {
  const ScratchDirectory folder;
  fs::copy(kDcp / "torch2.9.1_w2" / "data", folder / "c");
  const Outcome before = inspect(folder, "c", {"--shards"});
  const auto now = fs::file_time_type::clock::now();
  auto years = std::chrono::hours(24 * 365 * 20);
  for (const auto& entry : fs::directory_iterator(folder / "c")) {
    fs::last_write_time(entry.path(), now + years);
    years = -years;
  }
  const Outcome after = inspect(folder, "c", {"--shards"});
  EXPECT_EQ(after.exit, 0);
  EXPECT_EQ(after.out, before.out);
  EXPECT_EQ(after.err, before.err);
}

}  // namespace

}  // namespace ebb
