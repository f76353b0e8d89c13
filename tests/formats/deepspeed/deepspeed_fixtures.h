// Checkpoints that DeepSpeed wrote.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "ebb/formats/describe.h"
#include "tests/support/source_tree.h"

namespace ebb {

inline const std::filesystem::path kFixtures = std::filesystem::path(EBB_FIXTURES) / "deepspeed";
// What the engine does next, and what its observer noticed, are in no checkpoint.
inline constexpr std::string_view kNotStored[] = {"next_loss", "next_loss2", "notes", "from"};

namespace test_support {

inline std::unique_ptr<Checkpoint> described(std::shared_ptr<const formats::SourceTree> tree) {
  auto checkpoint = formats::describe(std::move(tree));
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EBB_CHECK(checkpoint.has_value());
  return std::move(*checkpoint);
}

// The files in whose names this is not.
inline std::shared_ptr<MemoryTree> without(const MemoryTree& tree, std::string_view left_out) {
  auto rest = std::make_shared<MemoryTree>("ck");
  for (const auto& entry : tree.entries())
    if (entry.name.find(left_out) == std::string::npos)
      rest->add(entry.name, const_cast<MemoryTree&>(tree).bytes_of(entry.name));
  return rest;
}

}  // namespace test_support

}  // namespace ebb
