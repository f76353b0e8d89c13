// What ckpt-convert compares before it publishes: a byte that is not what was written is told.
#include "tools/ckpt_convert/read_back.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/support/program.h"

namespace ebb::tools::convert {
namespace {

namespace fs = std::filesystem;
using formats::Taking;

class ReadBackTest : public ::testing::Test {
 protected:
  ReadBackTest() {
    auto tree = libswap::open_tree(fs::path(EBB_FIXTURES) / "dcp/hsdp_2x2/data");
    EXPECT_TRUE(tree);
    auto source = formats::describe(*std::move(tree));
    EXPECT_TRUE(source);
    source_ = *std::move(source);
    auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
    EXPECT_TRUE(chosen);
    auto io = libswap::IoQueue::start(std::move(chosen->backend), {});
    EXPECT_TRUE(io);
    io_ = *std::move(io);
  }

  // Into safetensors, which has no checksums that would notice.
  formats::Conversion planned(Taking taking) {
    auto plan = formats::plan_conversion(*source_, {.from = formats::format_of(source_->catalog()),
                                                    .to = *formats::format_named("safetensors"),
                                                    .taking = taking});
    EXPECT_TRUE(plan) << plan.error().message;
    return *std::move(plan);
  }
  using Check = decltype(libswap::WriteOptions::check);
  void write(const formats::Conversion& conversion, Check check) {
    const test_support::ScratchDirectory scratch;
    const auto written =
        libswap::write_checkpoint(*io_, *conversion.content, conversion.plan, scratch / "out",
                                  {.workers = 1, .check = std::move(check)});
    EXPECT_TRUE(written) << written.error().message;
  }

  std::unique_ptr<Checkpoint> source_;
  std::unique_ptr<libswap::IoQueue> io_;
  Console console_{"test"};
};

TEST_F(ReadBackTest, TellsAByteThatIsNotWhatWasWritten) {
  const formats::Conversion conversion = planned(Taking::content);
  bool checked = false;
  write(conversion, [&](const fs::path& directory, auto fingerprints) -> Result<> {
    const ReadBack read_back(conversion, 2);
    EXPECT_TRUE(read_back.run(console_, directory, fingerprints));
    std::fstream file(directory / "model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    file.close();
    const auto refused = read_back.run(console_, directory, fingerprints);
    checked = !refused;
    EXPECT_EQ(refused.error().code, Code::corrupt);
    EXPECT_NE(refused.error().message.find("was read back different"), std::string::npos);
    return {};
  });
  EXPECT_TRUE(checked);
}

// Not "corrupt", which speaks of the source.
TEST_F(ReadBackTest, ADefectOfTheWriterIsNotDamageOfTheSource) {
  const formats::Conversion all = planned(Taking::content);
  const formats::Conversion less = planned(Taking::weights);
  write(less, [&](const fs::path& directory, auto) -> Result<> {
    const std::vector<std::uint64_t> none(all.content->catalog().tensors.size(), 0);
    const auto refused = ReadBack(all, 2).run(console_, directory, none);
    EXPECT_FALSE(refused);
    if (refused) return {};
    EXPECT_EQ(refused.error().code, Code::state) << refused.error().message;
    return {};
  });
}

}  // namespace
}  // namespace ebb::tools::convert
