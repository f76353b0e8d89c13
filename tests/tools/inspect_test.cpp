// ckpt-inspect as a user runs it: what it prints, where, and with which exit code.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/support/program.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

Outcome inspect(const std::vector<std::string>& arguments) {
  return run_program("ckpt-inspect", arguments);
}

std::string golden(const std::string& name) {
  return test_support::text_of_file(std::string(EBB_FIXTURES) + "/../tools/golden/" + name);
}

// Where the elements of the first listed shard begin: DCP items are zip archives, data/0 holds
// them.
std::size_t elements_at(const std::string& shards, const std::string& file) {
  std::istringstream words(shards.substr(shards.find('\n')));
  const std::vector<std::string> cells{std::istream_iterator<std::string>(words), {}};
  const std::size_t item = std::stoull(cells.at(5));
  const std::size_t name = file.find("/data/0", item);
  const std::size_t header = file.rfind("PK\x03\x04", name);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(file.at(header + i)); };
  return header + 30 + byte(26) + byte(27) * 256u + byte(28) + byte(29) * 256u;
}

constexpr const char* kSharded = "safetensors/dcp_hf_sharded_w3/data";
constexpr const char* kHsdp = "dcp/hsdp_2x2/data";

TEST(InspectHelp, BeginsWithExamplesAndFitsAScreen) {
  const Outcome run = inspect({"-h"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, golden("inspect_help.txt"));
}

TEST(InspectHelp, LongFormNamesExitCodesAndFormats) {
  const Outcome run = inspect({"--help"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_NE(run.out.find("EXIT CODES\n  0  success\n"), std::string::npos);
  EXPECT_NE(run.out.find("  safetensors          one file"), std::string::npos);
}

TEST(InspectUsage, WithoutAPathItIsTheFolderOneStandsIn) {
  const Outcome there = inspect({kHsdp});
  const Outcome here = run_program(
      "/bin/sh", {"-c", std::string("cd ") + kHsdp + " && exec " EBB_BIN "/ckpt-inspect"});
  ASSERT_EQ(here.exit, 0) << here.err;
  EXPECT_EQ(here.out, "." + there.out.substr(there.out.find(':')));
}

TEST(InspectUsage, AnAddressIsNoPath) {
  const Outcome run = inspect({"s3://bucket/step-100"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("hint: only paths are read: mount what is there, or copy it here first"),
            std::string::npos)
      << run.err;
}

TEST(InspectUsage, QuietAnswersByTheExitCode) {
  const Outcome same = inspect({kHsdp, "--diff", kHsdp, "-q"});
  EXPECT_EQ(same.exit, 0);
  EXPECT_EQ(same.out + same.err, "");
  const Outcome other = inspect({kHsdp, "-q", "--diff", kSharded});
  EXPECT_EQ(other.exit, 1);
  EXPECT_EQ(other.out + other.err, "");
  const Outcome none = inspect({"no such folder", "--quiet"});
  EXPECT_EQ(none.exit, 2);
  EXPECT_EQ(none.out, "");
  EXPECT_NE(none.err.find("no such folder"), std::string::npos);
}

TEST(InspectUsage, UnknownFlagsGetASuggestion) {
  const Outcome run = inspect({"--shard", kSharded});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err, "ckpt-inspect: error: unknown flag --shard\nhint: did you mean --shards?\n");
}

TEST(InspectUsage, AMissingPathIsNamed) {
  const Outcome run = inspect({"no/such/place"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err,
            "ckpt-inspect: error: cannot open no/such/place: No such file or directory (ENOENT)\n");
}

TEST(InspectUsage, AFolderWithoutACheckpointIsUnsupported) {
  const ScratchDirectory empty;
  const Outcome run = inspect({empty.path()});
  EXPECT_EQ(run.exit, 4);
  EXPECT_EQ(run.err, "ckpt-inspect: error: " + empty.path() +
                         ": no checkpoint of a known format is here\n"
                         "hint: ckpt-inspect --help lists the formats this version reads\n");
}

TEST(InspectUsage, OneModeAtATime) {
  const Outcome run = inspect({kSharded, "--shards", "--verify"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err,
            "ckpt-inspect: error: --shards and --verify cannot be shown together\n"
            "hint: run ckpt-inspect once for each\n");
}

TEST(InspectUsage, AFilterThatLeavesNothingSaysSo) {
  const Outcome run = inspect({kSharded, "-k", "nothing*"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("none of the 5 tensors matches"), std::string::npos);
}

TEST(InspectSummary, ShowsWhoHoldsWhichRows) {
  const Outcome sharded = inspect({kSharded});
  EXPECT_EQ(sharded.exit, 0);
  EXPECT_EQ(sharded.out, golden("inspect_sharded.txt"));
  const Outcome hsdp = inspect({kHsdp});
  EXPECT_EQ(hsdp.exit, 0);
  EXPECT_EQ(hsdp.out, golden("inspect_hsdp.txt"));
}

TEST(InspectSummary, IsOneJsonDocumentForPrograms) {
  const Outcome run = inspect({kSharded, "--json"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out, golden("inspect_sharded.json"));
}

TEST(InspectShards, GivesRankRowsFileAndBytes) {
  const Outcome run = inspect({kSharded, "--shards", "-k", "w", "--rank", "1"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out, golden("inspect_shards.txt"));
}

TEST(InspectGroups, ListsEverySetting) {
  const Outcome run = inspect({kHsdp, "--groups", "-n", "2"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out, golden("inspect_groups.txt"));
}

TEST(InspectVerify, SaysWhatWasChecked) {
  const Outcome run = inspect({kHsdp, "--verify"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out,
            "dcp/hsdp_2x2/data: sound, 41 tensors in 73 chunks checked: 2.7 KiB of elements, in "
            "files of 180.3 KiB\n");
}

TEST(InspectVerify, NamesFileAndTensorOfOneFlippedBit) {
  const ScratchDirectory scratch;
  const std::string copy = scratch / "ckpt";
  fs::copy(fs::path(EBB_FIXTURES) / kHsdp, copy);
  const std::string file = copy + "/__0_0.distcp";
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  const Outcome shards =
      inspect({copy, "--shards", "-k", "blk.0.down.weight", "--state", "param", "-r", "0"});
  ASSERT_EQ(shards.exit, 0) << shards.err;
  {
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    const std::string text(std::istreambuf_iterator<char>(bytes), {});
    const std::size_t at = elements_at(shards.out, text);
    ASSERT_LT(at, text.size());
    bytes.clear();
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(text[at] ^ 4));
  }
  const Outcome run = inspect({copy, "--verify"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("__0_0.distcp:"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("blk.0.down.weight"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("1 problem"), std::string::npos) << run.out;
}

TEST(InspectOutput, AReaderThatGoesAwayIsNoFailure) {
  test_support::RunningProgram run("ckpt-inspect", {kHsdp, "--tensors", "--digest", "--json"});
  run.close_output();
  const Outcome outcome = run.wait();
  EXPECT_EQ(outcome.exit, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(InspectDamage, ExitCodeThreeAndOneLine) {
  const Outcome run = inspect({"safetensors/bad_overlap/data"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err,
            "ckpt-inspect: error: safetensors/bad_overlap/data/model.safetensors:140: tensors 'a' "
            "[0,16) and 'b' [8,24) overlap\n");
}

TEST(InspectDifference, IsZeroForTheSameContent) {
  const Outcome run = inspect({kHsdp, "--diff", kHsdp});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out, "same: 41 tensors (2.7 KiB) equal bit for bit, 35 values compared\n");
}

TEST(InspectDifference, NamesWhatDiffersAndExitsWithOne) {
  const Outcome run =
      inspect({"dcp/torch2.8.0_w2/data", "--diff", "safetensors/odd_header_spaces/data"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("  net.w1 (param): only on the left\n"), std::string::npos);
  EXPECT_NE(run.out.find("  a (param): only on the right\n"), std::string::npos);
}

TEST(InspectMap, IsOnePageThatNeedsNothingElse) {
  const ScratchDirectory scratch;
  const std::string file = scratch / "map.html";
  const Outcome run = inspect({kHsdp, "--map", file});
  ASSERT_EQ(run.exit, 0) << run.err;
  std::ifstream in(file);
  const std::string page(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(page.find("<h1>2 ranks hold 691 elements"), std::string::npos);
  EXPECT_NE(page.find("blk.0.down.weight"), std::string::npos);
  EXPECT_EQ(page.find("://"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);  // no part of one
}

TEST(InspectMap, AFolderThatIsNotThereIsAnError) {
  const ScratchDirectory scratch;
  const Outcome run = inspect({kHsdp, "--map", scratch / "no/map.html"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("no/map.html"), std::string::npos) << run.err;
}

}  // namespace

}  // namespace ebb
