// Every damaged fixture of DCP, torch.save and safetensors, as ckpt-inspect refuses it: exit code 3
// and one line with file, offset, key and reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "tests/support/expected.h"
#include "tests/support/program.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;

struct Refusal {
  std::string folder;
  std::string says;  // the whole message after "ckpt-inspect: error: "
};

const std::vector<Refusal> kRefusals = {
    {"dcp/bad_hole", "dcp/bad_hole/data/.metadata: model.big: rows 5-8 are in no shard"},
    {"dcp/bad_item_past_eof",
     "dcp/bad_item_past_eof/data/__1_0.distcp:1261: the item of tensor \"model.w\" is 5673 bytes "
     "long and lies past the end of its file of 6056 bytes"},
    {"dcp/bad_metadata_system_call",
     "dcp/bad_metadata_system_call/data/.metadata:874: the pickle names \"posix.system\", which no "
     "framework writes here; nothing was executed"},
    {"dcp/bad_metadata_truncated",
     "dcp/bad_metadata_truncated/data/.metadata:2: a frame of 1613 bytes, but the pickle ends at "
     "byte 1082: it was cut off"},
    {"dcp/bad_missing_file",
     "dcp/bad_missing_file/data/__1_0.distcp: payload file __1_0.distcp is missing; it held "
     "\"model.w\" [4:7, 0:4], \"model.big\" [5:9, 0:5], \"model.b\" [2:3], value \"step\""},
    {"dcp/bad_no_storage_entry",
     "dcp/bad_no_storage_entry/data/.metadata: storage_data has no entry for the chunk of tensor "
     "\"model.b\" at offset [2]"},
    {"dcp/bad_overlap",
     "dcp/bad_overlap/data/.metadata: model.w: row 3 is in shards of ranks 0 and 1 "
     "(__0_0.distcp:0 and __1_0.distcp:1261)"},
    {"dcp/bad_payload_shape",
     "dcp/bad_payload_shape/data/__1_0.distcp:6056: tensor \"model.big\" [5:9, 0:5]: the metadata "
     "declares F32 of shape [4, 5] but the file holds a tensor of F32 and shape [3, 5]"},
    {"dcp/bad_uncommitted",
     "dcp/bad_uncommitted/data: the checkpoint was never committed: only .metadata.tmp exists, no "
     ".metadata\nhint: use the checkpoint before this one"},
    {"safetensors/bad_duplicate_key",
     "safetensors/bad_duplicate_key/data/model.safetensors:66: key 'a' appears twice in the "
     "header"},
    {"safetensors/bad_header_length",
     "safetensors/bad_header_length/data/model.safetensors:0: the header claims 1000000 bytes but "
     "the file has fewer"},
    {"safetensors/bad_hole",
     "safetensors/bad_hole/data/model.safetensors:140: bytes [8,12) of the data belong to no "
     "tensor"},
    {"safetensors/bad_nan_in_json",
     "safetensors/bad_nan_in_json/data/model.safetensors:37: the header is not valid JSON (NaN at "
     "byte 29 of the header)"},
    {"safetensors/bad_overlap",
     "safetensors/bad_overlap/data/model.safetensors:140: tensors 'a' [0,16) and 'b' [8,24) "
     "overlap"},
    {"safetensors/bad_shape_product",
     "safetensors/bad_shape_product/data/model.safetensors:14: tensor 'a': F32 [3, 2] needs 24 "
     "bytes but data_offsets give 20"},
    {"torch/bad_crc",
     "torch/bad_crc/data/ckpt.pt:598: w: record 'ckpt/data/0' fails its CRC32 check"},
    {"torch/bad_duplicate_record",
     "torch/bad_duplicate_record/data/dup.pt:1102: record 'ckpt/data/0' is listed twice in the "
     "central directory"},
    {"torch/bad_record_name_escape",
     "torch/bad_record_name_escape/data/escape.pt:583: record name 'ckpt/../../evil' leaves the "
     "archive's directory"},
    {"torch/bad_storage_too_short",
     "torch/bad_storage_too_short/data/short.pt:0: \"w\": storage '0' is declared with 120 bytes "
     "but its record has 112 bytes"},
    {"torch/bad_system_call",
     "torch/bad_system_call/data: value \"x\": the pickle names \"posix.system\", which no "
     "framework "
     "writes here; nothing was executed\nhint: ckpt-convert torch/bad_system_call/data DST --to "
     "FORMAT --drop leaves it behind"},
    {"torch/bad_truncated",
     "torch/bad_truncated/data/ckpt.pt:1836: the zip has no end-of-central-directory record: it is "
     "cut off"},
};

TEST(MalformedFixture, IsRefusedWithExitCodeThreeAndOneLine) {
  for (const Refusal& wanted : kRefusals) {
    ASSERT_NE(
        test_support::expected_error(fs::path(EBB_FIXTURES) / wanted.folder / "expected.json"), "");
    const Outcome run =
        run_program("ckpt-inspect", {wanted.folder + "/data", "--tensors", "--digest"});
    EXPECT_EQ(run.exit, 3) << wanted.folder;
    // What would have been called keeps nobody from seeing the rest.
    EXPECT_EQ(run.out.empty(), wanted.folder != "torch/bad_system_call") << wanted.folder;
    EXPECT_EQ(run.err, "ckpt-inspect: error: " + wanted.says + "\n");
  }
  EXPECT_FALSE(fs::exists(fs::path(EBB_FIXTURES) / "PWNED"));
}

TEST(MalformedFixture, EveryOneOfThemIsInTheTable) {
  for (const char* family : {"dcp", "safetensors", "torch"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(EBB_FIXTURES) / family)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("bad_")) continue;
      const std::string folder = std::string(family) + "/" + name;
      EXPECT_NE(std::ranges::find(kRefusals, folder, &Refusal::folder), kRefusals.end()) << folder;
    }
  }
}

TEST(MalformedFixture, IsNeverConverted) {
  for (const Refusal& wanted : kRefusals) {
    const test_support::ScratchDirectory scratch;
    const Outcome run =
        run_program("ckpt-convert", {wanted.folder + "/data", scratch / "out", "--to", "dcp"});
    EXPECT_EQ(run.exit, 3) << wanted.folder << ": " << run.err;
    EXPECT_TRUE(fs::is_empty(scratch.path())) << wanted.folder;
  }
}

}  // namespace

}  // namespace ebb
