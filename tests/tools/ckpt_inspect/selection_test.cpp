// What the screen counts where flags leave a part: what one rank wrote, or some tensors.
#include <gtest/gtest.h>

#include <charconv>
#include <filesystem>
#include <fstream>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/conversion/memory_content.h"
#include "ebb/formats/registry.h"
#include "tests/support/emit_in_memory.h"
#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {
namespace {

using inspect_test::inspect;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

std::uint64_t number_in(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\": ");
  std::uint64_t number = 0;
  EXPECT_NE(at, std::string::npos) << key << " in " << json;
  const char* first = json.data() + at + key.size() + 4;
  std::from_chars(first, json.data() + json.size(), number);
  return number;
}

class ARanksShare : public testing::TestWithParam<const char*> {};

// Every element is stored once: the ranks' shares are all there is.
TEST_P(ARanksShare, IsWhatItWroteAndTogetherTheyAreAll) {
  const std::string path = GetParam();
  const std::string all = inspect({path, "--json"}).out;
  std::uint64_t elements = 0, bytes = 0;
  for (std::uint64_t rank = 0; rank < number_in(all, "world"); ++rank) {
    const Outcome own = inspect({path, "-r", std::to_string(rank), "--json"});
    if (own.exit == 2) continue;  // a replica of which nothing was written
    ASSERT_EQ(own.exit, 0) << own.err;
    elements += number_in(own.out, "elements");
    bytes += number_in(own.out, "bytes");
    EXPECT_NE(own.out.find("\"selected\": \"what rank " + std::to_string(rank) + " wrote\""),
              std::string::npos);
    for (std::uint64_t other = 0; other < number_in(all, "world"); ++other)
      if (other != rank) {
        EXPECT_EQ(own.out.find("\"rank\": " + std::to_string(other)), std::string::npos)
            << "a file of another rank: " << own.out;
      }
  }
  EXPECT_EQ(elements, number_in(all, "elements"));
  EXPECT_EQ(bytes, number_in(all, "bytes"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ARanksShare,
                         testing::Values("dcp/hsdp_2x2/data", "dcp/tp_fsdp_2x2_strided/data",
                                         "deepspeed/z3_adamw_bf16_w4/data",
                                         "safetensors/dcp_hf_sharded_w3/data"),
                         [](const auto& one) {
                           std::string name = one.param;
                           for (char& c : name)
                             if (c == '/') c = '_';
                           return name;
                         });

TEST(ASelection, SaysWhatIsNotOfIt) {
  const std::string path = "dcp/hsdp_2x2/data";
  EXPECT_EQ(inspect({path}).out.find("selected"), std::string::npos);
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"-k", "*weight"}, {"--state", "param"}, {"-r", "1"}}) {
    std::vector<std::string> words = {path};
    words.insert(words.end(), flags.begin(), flags.end());
    const Outcome run = inspect(words);
    ASSERT_EQ(run.exit, 0) << run.err;
    EXPECT_NE(run.out.find("all else is of the complete checkpoint"), std::string::npos) << run.out;
  }
}

TEST(TheScreen, SaysThatEbbWroteADcp) {
  const ScratchDirectory scratch;
  const std::string dcp = scratch / "dcp", megatron = scratch / "megatron";
  for (const auto& [out, format] : {std::pair(dcp, "dcp"), {megatron, "megatron"}})
    ASSERT_EQ(run_program("ckpt-convert",
                          {"deepspeed/z3_adamw_bf16_w4/data", out, "--to", format, "--drop"})
                  .exit,
              0);
  EXPECT_NE(inspect({dcp}).out.find("written by Ebb, as torch 2.9 to 2.14 lays it out"),
            std::string::npos)
      << inspect({dcp}).out;
  EXPECT_NE(inspect({megatron}).out.find("written by Ebb, as Megatron-core"), std::string::npos)
      << inspect({megatron}).out;
  EXPECT_EQ(inspect({"dcp/hsdp_2x2/data"}).out.find("Ebb"), std::string::npos);
}

using Settings = std::vector<std::pair<std::string, Value>>;

// A DCP whose group has these settings.
std::string with_settings(const ScratchDirectory& scratch, Settings settings) {
  const std::string bytes(16, '\0');
  Catalog catalog;
  std::vector<formats::Held> held;
  for (const char* state : {"param", "momentum_buffer"}) {
    TensorEntry& tensor = catalog.tensors.emplace_back();
    tensor.name = "w";
    tensor.state = state;
    tensor.shape = {2, 2};
    held.push_back({static_cast<std::uint32_t>(held.size()), formats::whole(tensor.shape),
                    std::as_bytes(std::span(bytes))});
  }
  catalog.groups.push_back({"muon", std::move(settings), {"w"}});
  const auto content = formats::MemoryContent::make(std::move(catalog), std::move(held));
  const formats::Format& dcp = *formats::format_named("dcp");
  auto made = formats::plan_conversion(*content, {.from = dcp, .to = dcp});
  EXPECT_TRUE(made) << made.error().message;
  const auto tree = test_support::carry_out(made->plan, *made->content, "made");
  const std::string path = scratch / "made";
  std::filesystem::create_directory(path);
  for (const auto& entry : (*tree)->entries()) {
    std::ofstream(path + "/" + entry.name, std::ios::binary)
        << formats::text_of((*tree)->bytes_of(entry.name));
  }
  return path;
}

TEST(TheScreen, SaysWhatMomentumIsAndWhichKind) {
  const Value beta = Value::of_real(0.95);
  for (const char* form : {"ema", "sum"}) {
    const Value word = Value::of_string(form);
    for (const auto& settings : {Settings{{"beta", beta}, {"momentum", word}},
                                 Settings{{"momentum", beta}, {"momentum_convention", word}}}) {
      const ScratchDirectory scratch;
      const std::string out = inspect({with_settings(scratch, settings)}).out;
      EXPECT_NE(out.find("momentum=0.95 (" + std::string(form) + ")"), std::string::npos) << out;
      EXPECT_EQ(out.find("beta="), std::string::npos) << out;
      EXPECT_EQ(out.find("convention"), std::string::npos) << out;
    }
  }
  const ScratchDirectory scratch;
  const std::string out = inspect({with_settings(scratch, {{"momentum", beta}})}).out;
  EXPECT_NE(out.find("momentum=0.95"), std::string::npos) << out;
}

}  // namespace
}  // namespace ebb
