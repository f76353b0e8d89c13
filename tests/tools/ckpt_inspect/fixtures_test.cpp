// Every fixture in every mode: the content that its framework says it has, exit codes, one JSON
// document, the same as itself; or the refusal.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "tests/support/expected.h"
#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using inspect_test::inspect;
using test_support::Outcome;

// A build without libhdf5 has no reader program.
bool reads_hdf5() { return fs::exists(std::string(EBB_BIN) + "/ebb-hdf5-reader"); }

// "dcp/hsdp_2x2", ...: all that a framework wrote, of all formats.
std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& family : fs::directory_iterator(EBB_FIXTURES))
    if (family.is_directory() && (family.path().filename() != "hdf5" || reads_hdf5()))
      for (const auto& one : fs::directory_iterator(family.path()))
        if (fs::exists(one.path() / "data"))
          names.push_back(family.path().filename().string() + "/" + one.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string reason_of(const std::string& fixture) {
  const fs::path expected = fs::path(EBB_FIXTURES) / fixture / "expected.json";
  return fs::exists(expected) ? test_support::expected_error(expected) : std::string();
}

std::vector<std::string> chosen(bool (*wanted)(const std::string& reason)) {
  std::vector<std::string> names = fixtures();
  std::erase_if(names, [&](const std::string& name) { return !wanted(reason_of(name)); });
  return names;
}

std::string name_of(std::string name) {
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

// --tensors has the schema of expected.json, and no "mode".
bool is_document(const std::string& text, std::string_view mode) {
  simdjson::dom::parser parser;
  simdjson::dom::element document;
  if (parser.parse(text).get(document) != simdjson::SUCCESS) return false;
  std::string_view says;
  if (mode == "tensors") return document["tensors"].is_array();
  return document["mode"].get(says) == simdjson::SUCCESS && says == mode;
}

class InspectSound : public testing::TestWithParam<std::string> {
 protected:
  std::string data() const { return GetParam() + "/data"; }
  bool of(std::string_view family) const {
    return GetParam().starts_with(std::string(family) + "/");
  }
};

TEST_P(InspectSound, HoldsWhatTheFrameworkSays) {
  const fs::path expected = fs::path(EBB_FIXTURES) / GetParam() / "expected.json";
  if (!fs::exists(expected))
    GTEST_SKIP() << "written by this library, or compared in tests/formats/folders";
  const Outcome run = inspect({data(), "--tensors", "--digest", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  // Elsewhere expected.json also says what is in no file; tests/formats compares those values.
  // Of the layouts only names and bits were written down.
  const bool layout = GetParam().find("/layout_") != std::string::npos;
  const bool all_stored = !layout && (of("dcp") || of("safetensors") || of("torch"));
  EXPECT_EQ(test_support::content_differences(run.out, expected,
                                              all_stored ? test_support::Compare::tensors_and_values
                                                         : test_support::Compare::tensors),
            "");
}

TEST_P(InspectSound, IsShownOnOneScreen) {
  const Outcome text = inspect({data()});
  EXPECT_EQ(text.exit, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with(data() + ": ")) << text.out;
  for (const char* line : {"\n  holds ", "\n  states ", "\n  dtypes ", "\n  ranks ", "\n  files ",
                           "\n  complete  yes: "})
    EXPECT_NE(text.out.find(line), std::string::npos) << line << text.out;
  EXPECT_LE(std::count(text.out.begin(), text.out.end(), '\n'), 50) << text.out;
  const Outcome json = inspect({data(), "--json"});
  EXPECT_EQ(json.exit, 0) << json.err;
  EXPECT_TRUE(is_document(json.out, "summary")) << json.out;
}

TEST_P(InspectSound, IsListedInEveryMode) {
  for (const char* mode : {"tensors", "shards", "groups", "verify", "stats", "raw"}) {
    const Outcome text = inspect({data(), std::string("--") + mode});
    EXPECT_EQ(text.exit, 0) << mode << " " << text.err;
    EXPECT_FALSE(text.out.empty()) << mode;
    const Outcome json = inspect({data(), std::string("--") + mode, "--json"});
    EXPECT_EQ(json.exit, 0) << mode << " " << json.err;
    EXPECT_TRUE(is_document(json.out, mode)) << mode << " " << json.out.substr(0, 300);
  }
}

TEST_P(InspectSound, IsTheSameAsItself) {
  const Outcome text = inspect({data(), "--diff", data()});
  EXPECT_EQ(text.exit, 0) << text.out;
  EXPECT_TRUE(text.out.starts_with("same: ")) << text.out;
  const Outcome json = inspect({data(), "--diff", data(), "--json"});
  EXPECT_EQ(json.exit, 0) << json.err;
  EXPECT_TRUE(is_document(json.out, "diff")) << json.out;
}

TEST_P(InspectSound, IsExplainedOnAnyNumberOfRanks) {
  for (const char* world : {"1", "2", "5"}) {
    const Outcome text = inspect({data(), "--explain-resume", world});
    EXPECT_TRUE(text.exit == 0 || text.exit == 1) << text.exit << " " << text.err;
    EXPECT_NE(text.out.find(text.exit == 0 ? ": yes, " : ": no, "), std::string::npos) << text.out;
    const Outcome json = inspect({data(), "--explain-resume", world, "--json"});
    EXPECT_EQ(json.exit, text.exit);
    EXPECT_TRUE(is_document(json.out, "explain-resume")) << json.out;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, InspectSound,
                         testing::ValuesIn(chosen([](const auto& why) { return why.empty(); })),
                         [](const auto& one) { return name_of(one.param); });

struct Refusal {
  const char* fixture;
  int exit;
  const char* says;       // after the path of the checkpoint's folder
  bool is_shown = false;  // it can be read, but is not to be gone on with
};
void PrintTo(const Refusal& one, std::ostream* out) { *out << one.fixture; }

constexpr Refusal kRefusals[] = {
    {"dcp/bad_hole", 3, "/.metadata: model.big: rows 5-8 are in no shard"},
    {"dcp/bad_item_past_eof", 3,
     "/__1_0.distcp:1261: the item of tensor \"model.w\" is 5673 bytes long and lies past the end "
     "of its file of 6056 bytes"},
    {"dcp/bad_metadata_system_call", 3,
     "/.metadata:874: the pickle names \"posix.system\", which no framework writes here; nothing "
     "was executed"},
    {"dcp/bad_metadata_truncated", 3,
     "/.metadata:2: a frame of 1613 bytes, but the pickle ends at byte 1082: it was cut off"},
    {"dcp/bad_missing_file", 3,
     "/__1_0.distcp: payload file __1_0.distcp is missing; it held \"model.w\" [4:7, 0:4], "
     "\"model.big\" [5:9, 0:5], \"model.b\" [2:3], value \"step\""},
    {"dcp/bad_no_storage_entry", 3,
     "/.metadata: storage_data has no entry for the chunk of tensor \"model.b\" at offset [2]"},
    {"dcp/bad_overlap", 3,
     "/.metadata: model.w: row 3 is in shards of ranks 0 and 1 (__0_0.distcp:0 and "
     "__1_0.distcp:1261)"},
    {"dcp/bad_payload_shape", 3,
     "/__1_0.distcp:6056: tensor \"model.big\" [5:9, 0:5]: the metadata declares F32 of shape [4, "
     "5] but the file holds a tensor of F32 and shape [3, 5]"},
    {"dcp/bad_uncommitted", 3,
     ": the checkpoint was never committed: only .metadata.tmp exists, no .metadata"},
    {"dcp/unsafe_value_w1", 3,
     ": value \"extra\": the pickle names \"posix.system\", which no framework writes here; "
     "nothing "
     "was executed (and 1 more value)",
     true},
    {"deepspeed/bad_missing_rank", 3,
     ": global_step3: optimizer file of rank 1 is missing (partition_count is 3): "
     "global_step3/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"},
    {"deepspeed/bad_pickle", 3,
     ": value \"overflow\": the pickle names \"posix.system\", which no framework writes here",
     true},
    {"hdf5/bad_external_link", 4,
     "/state.h5: /state/w is an external link to another file: /etc/outside.h5"},
    {"hdf5/bad_external_storage", 4,
     "/state.h5: /state/w/master: raw data in an external file outside the checkpoint: "
     "../../../outside.bin"},
    {"hdf5/bad_fletcher_flip", 3,
     "/state.h5:2048: chunk of /state/w/master: its checksum (fletcher32) is wrong"},
    {"hdf5/bad_shape_bomb", 3,
     "/state.h5: /state/w/master: shape [1099511627776, 1048576] needs 4611686018427387904 bytes, "
     "but the file has no such data"},
    {"hdf5/bad_soft_link_loop", 3,
     "/state.h5: soft links form a loop: /state/v -> /state/w -> /state/v"},
    {"hdf5/bad_truncated", 3,
     "/state.h5:14788: the file ends before the end its superblock states, 16288"},
    {"hdf5/bad_vds_missing_source", 3,
     "/global.h5: /state/w/master: virtual dataset's source file rank0.h5 does not exist (the "
     "library alone would read NaN)"},
    {"megatron/bad_no_metadata_json", 3,
     "/iter_0000012: metadata.json is missing: the save did not finish"},
    {"safetensors/bad_duplicate_key", 3,
     "/model.safetensors:66: key 'a' appears twice in the header"},
    {"safetensors/bad_header_length", 3,
     "/model.safetensors:0: the header claims 1000000 bytes but the file has fewer"},
    {"safetensors/bad_hole", 3,
     "/model.safetensors:140: bytes [8,12) of the data belong to no tensor"},
    {"safetensors/bad_nan_in_json", 3,
     "/model.safetensors:37: the header is not valid JSON (NaN at byte 29 of the header)"},
    {"safetensors/bad_overlap", 3,
     "/model.safetensors:140: tensors 'a' [0,16) and 'b' [8,24) overlap"},
    {"safetensors/bad_shape_product", 3,
     "/model.safetensors:14: tensor 'a': F32 [3, 2] needs 24 bytes but data_offsets give 20"},
    {"torch/bad_crc", 3, "/ckpt.pt:598: w: record 'ckpt/data/0' fails its CRC32 check"},
    {"torch/bad_duplicate_record", 3,
     "/dup.pt:1102: record 'ckpt/data/0' is listed twice in the central directory"},
    {"torch/bad_record_name_escape", 3,
     "/escape.pt:583: record name 'ckpt/../../evil' leaves the archive's directory"},
    {"torch/bad_storage_too_short", 3,
     "/short.pt:0: \"w\": storage '0' is declared with 120 bytes but its record has 112 bytes"},
    {"torch/bad_system_call", 3,
     ": value \"x\": the pickle names \"posix.system\", which no framework writes here; nothing "
     "was "
     "executed",
     true},
    {"torch/bad_truncated", 3,
     "/ckpt.pt:1836: the zip has no end-of-central-directory record: it is cut off"},
    {"torch/conjugated", 4,
     "/ckpt.pt:0: \"w\": ckpt/data.pkl: a tensor whose elements are stored conjugated or negated"},
};

std::vector<Refusal> refusals() {
  std::vector<Refusal> list(std::begin(kRefusals), std::end(kRefusals));
  std::erase_if(list, [](const Refusal& one) {
    return std::string_view(one.fixture).starts_with("hdf5/") && !reads_hdf5();
  });
  return list;
}

TEST(InspectFixtures, ThoseOfHdf5AreAmongThem) {
  if (!reads_hdf5())
    GTEST_SKIP() << "built without libhdf5: no ebb-hdf5-reader, so no HDF5 fixture was read";
  const std::vector<std::string> names = fixtures();
  EXPECT_TRUE(std::any_of(names.begin(), names.end(),
                          [](const auto& name) { return name.starts_with("hdf5/"); }));
}

class InspectDamaged : public testing::TestWithParam<Refusal> {
 protected:
  std::string data() const { return std::string(GetParam().fixture) + "/data"; }

  // One line that says where and why, then at most a hint.
  void expect_refused(const Outcome& run) const {
    EXPECT_EQ(run.exit, GetParam().exit);
    const bool nothing = run.out.empty() || run.out.starts_with("{\"schema\": \"ebb.error/1\"");
    EXPECT_EQ(nothing, !GetParam().is_shown) << run.out;
    EXPECT_TRUE(run.err.starts_with("ckpt-inspect: error: ")) << run.err;
    const std::string first = run.err.substr(0, run.err.find('\n') + 1);
    EXPECT_NE(first.find(data() + GetParam().says), std::string::npos) << run.err;
    const std::string rest = run.err.substr(first.size());
    EXPECT_TRUE(rest.empty() || (rest.starts_with("hint: ") && rest.find('\n') + 1 == rest.size()))
        << run.err;
  }
};

TEST_P(InspectDamaged, IsRefusedInOneLine) {
  expect_refused(inspect({data(), "--tensors", "--digest"}));
  expect_refused(inspect({data(), "--tensors", "--digest", "--json"}));
  expect_refused(inspect({data(), "--stats"}));
}

// What an index says wrong is seen before anything is shown; damaged elements when they are read.
TEST_P(InspectDamaged, IsNotSoundForVerify) {
  const Outcome summary = inspect({data()});
  const Outcome verify = inspect({data(), "--verify", "--json"});
  EXPECT_TRUE(is_document(verify.out, "verify")) << verify.out;
  EXPECT_NE(verify.out.find("\"sound\": false"), std::string::npos) << verify.out;
  if (GetParam().is_shown) {
    EXPECT_EQ(summary.exit, 3);
    EXPECT_EQ(verify.exit, 3);
  } else if (summary.exit == 0) {
    EXPECT_EQ(verify.exit, 1) << verify.out;
  } else {
    expect_refused(summary);
    EXPECT_EQ(verify.exit, GetParam().exit);
  }
}

// What reading the index shows; --verify is for the rest.
TEST_P(InspectDamaged, IsNotResumable) {
  if (GetParam().is_shown) GTEST_SKIP() << "it can be resumed, by whoever trusts it";
  if (inspect({data()}).exit == 0) GTEST_SKIP() << "only its elements are damaged";
  const Outcome run = inspect({data(), "--explain-resume", "2", "--json"});
  EXPECT_TRUE(run.exit == 1 || run.exit == GetParam().exit) << run.exit << run.out << run.err;
  if (run.exit == 1) {
    EXPECT_NE(run.out.find("\"resumable\": false"), std::string::npos) << run.out;
  }
}

// On the default screen, for people and for programs, and as something wrong for --verify.
TEST(InspectUnsafe, NamesWhatLoadingWouldCall) {
  const Outcome text = inspect({"dcp/unsafe_value_w1/data"});
  EXPECT_EQ(text.exit, 3);
  EXPECT_NE(text.out.find(
                "\n  unsafe    \"posix.system\": Python may call it when it loads value \"extra\""),
            std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("\n  unsafe    \"__builtin__.exec\": "), std::string::npos) << text.out;
  const Outcome json = inspect({"dcp/unsafe_value_w1/data", "--json"});
  EXPECT_EQ(json.exit, 3);
  EXPECT_NE(json.out.find("\"unsafe\": [{\"value\": \"extra\", \"name\": \"posix.system\"}"),
            std::string::npos)
      << json.out;
  const Outcome verify = inspect({"dcp/unsafe_value_w1/data", "--verify"});
  EXPECT_EQ(verify.exit, 3);
  EXPECT_NE(verify.out.find(": 2 problems, 1 tensor in 1 chunk checked"), std::string::npos)
      << verify.out;
  EXPECT_FALSE(fs::exists(fs::path(EBB_FIXTURES) / "PWNED"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, InspectDamaged, testing::ValuesIn(refusals()),
                         [](const auto& one) { return name_of(one.param.fixture); });

TEST(InspectDamagedFixtures, AreAllHere) {
  std::vector<std::string> listed;
  for (const Refusal& one : refusals()) listed.emplace_back(one.fixture);
  EXPECT_EQ(listed, chosen([](const auto& why) { return !why.empty(); }));
}

}  // namespace

}  // namespace ebb
