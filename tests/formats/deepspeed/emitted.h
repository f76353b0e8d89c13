// What a writer of DeepSpeed's planned, carried out in memory and read again.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/emit_in_memory.h"

namespace ebb::test_support {

struct Emitted {
  EmitPlan plan;
  std::shared_ptr<MemoryTree> tree;
  std::unique_ptr<Checkpoint> checkpoint;
};

// Policy::replicated: a universal checkpoint.
inline Emitted emit(const Checkpoint& content, Policy policy, std::uint32_t world) {
  const Layout layout = layout_for(content.catalog(), policy, world);
  const bool universal = policy == Policy::replicated;
  auto plan = universal ? formats::emit_deepspeed_universal({content.catalog(), layout})
                        : formats::emit_deepspeed({content.catalog(), layout});
  EBB_CHECK(plan.has_value());
  auto tree = carry_out(*plan, content, "out");
  EBB_CHECK(tree.has_value());
  EXPECT_TRUE(universal || formats::detect_deepspeed(**tree));
  auto again =
      universal ? formats::describe_deepspeed_universal(*tree) : formats::describe_deepspeed(*tree);
  EXPECT_TRUE(again.has_value()) << again.error().message;
  // Nothing instead of a null pointer: what is asked of it fails, and the other tests run.
  auto nothing = std::make_unique<MadeContent>("unreadable", DType::f32);
  return {std::move(*plan), std::move(*tree), again ? std::move(*again) : std::move(nothing)};
}

}  // namespace ebb::test_support
