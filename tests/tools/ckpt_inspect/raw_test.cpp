// ckpt-inspect --raw: the structure of files, of damaged ones too, and nothing executed.
#include <gtest/gtest.h>

#include <simdjson.h>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

using inspect_test::inspect;
using test_support::Outcome;

TEST(InspectRaw, ShowsPicklesAsATreeWithoutExecutingThem) {
  const Outcome run = inspect({"torch/bad_system_call/data", "--raw"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_NE(run.out.find("         230        \"x\": posix.system(\"touch PWNED\",)\n"),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("         233        posix.system\n"), std::string::npos) << run.out;
}

TEST(InspectRaw, ShowsHeadersWithOffsetsEvenIfTheyAreNoJson) {
  const Outcome run = inspect({"safetensors/bad_nan_in_json/data", "--raw"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_NE(run.out.find("          28        \"shape\":[NaN],\n"), std::string::npos) << run.out;
}

TEST(InspectRaw, SaysWhyAFileCannotBeTakenApartAndShowsItsHead) {
  const Outcome run = inspect({"torch/bad_truncated/data", "--raw"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_NE(run.out.find("cannot be taken apart: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("504b0304"), std::string::npos) << run.out;
}

TEST(InspectRaw, FindsTheArchivesInsideAPayloadFile) {
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--raw", "-k", "__0_0.distcp"});
  EXPECT_NE(run.out.find("bytes: model.blk.0.up.weight [0:4, 0:5]\n"), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("torch._utils._rebuild_tensor_v2"), std::string::npos);
}

TEST(InspectRaw, IsBoundedByTheLimit) {
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--raw", "-k", ".metadata", "-n", "10"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_LT(std::count(run.out.begin(), run.out.end(), '\n'), 40) << run.out;
  EXPECT_NE(run.out.find("... more"), std::string::npos) << run.out;
}

TEST(InspectRaw, IsOneJsonDocumentForEveryFormat) {
  for (const char* path : {"dcp/hsdp_2x2/data", "deepspeed/z3_muon_nvme_w2/data", "ebb/v1_w2/data",
                           "safetensors/dcp_hf_index/data", "torch/muon_adamw_state/data"}) {
    const Outcome run = inspect({path, "--raw", "--json"});
    EXPECT_EQ(run.exit, 0) << run.err;
    simdjson::dom::parser parser;
    simdjson::dom::element document;
    ASSERT_EQ(parser.parse(run.out).get(document), simdjson::SUCCESS) << path;
    simdjson::dom::array files;
    ASSERT_EQ(document["files"].get(files), simdjson::SUCCESS);
    EXPECT_GT(files.size(), 0u) << path;
  }
}

TEST(InspectRaw, AGlobThatNoFileMatchesSaysSo) {
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--raw", "-k", "nothing"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("-k picks files by name"), std::string::npos) << run.err;
}

}  // namespace

}  // namespace ebb
