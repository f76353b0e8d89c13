// An engine of a world of one, opened for a test and closed behind it.
#pragma once

#include <gtest/gtest.h>

#include "tests/bindings/c/small_model.h"
#include "tests/support/program.h"

namespace ebb::c {

class OpenedEngine : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ebb_ranks_alone(&ranks_), EBB_DONE);
    ASSERT_EQ(model_.open(ranks_, scratch_ / "swap", &engine_), EBB_DONE) << last_message();
  }
  // A test may have closed them.
  void TearDown() override {
    ebb_engine_close(engine_);
    ebb_ranks_close(ranks_);
  }

  const test_support::ScratchDirectory scratch_;
  SmallModel model_;
  ebb_ranks* ranks_ = nullptr;
  ebb_engine* engine_ = nullptr;
};

}  // namespace ebb::c
