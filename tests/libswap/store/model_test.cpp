// The protocol never loses or mixes a generation, and each shortcut through it is caught.
#include "tests/libswap/store/commit_model.h"

#include <gtest/gtest.h>

namespace ebb::commit_model {
namespace {

struct Outcome {
  std::uint64_t images = 0;
  std::uint64_t violations = 0;
};

// All faults at all ranks and generations.
Outcome search_all(int ranks, Protocol protocol) {
  Outcome outcome;
  for (const Fault& fault : all_faults(ranks)) {
    Model model(ranks, protocol, fault);
    model.search();
    outcome.images += model.images;
    outcome.violations += model.violations;
    const bool stops = fault.kind == Failure::data_sync || fault.kind == Failure::meta_sync;
    EXPECT_TRUE(model.finished || stops || (ranks == 1 && fault.kind == Failure::all_meta));
  }
  return outcome;
}

TEST(CommitModel, TheProtocolNeverLosesOrMixesAGeneration) {
  for (const int ranks : {1, 2, 3}) {
    const Outcome outcome = search_all(ranks, Protocol::as_written);
    EXPECT_EQ(outcome.violations, 0u) << ranks << " ranks";
    EXPECT_GT(outcome.images, 500u);
  }
}

TEST(CommitModel, ReusingSlotsWithoutTheSecondAgreementIsCaught) {
  EXPECT_GT(search_all(2, Protocol::no_second_agreement).violations, 0u);
}

TEST(CommitModel, LeavingAnAbandonedManifestValidIsCaught) {
  EXPECT_GT(search_all(2, Protocol::no_invalidation).violations, 0u);
}

TEST(CommitModel, FreeingTheOldGenerationAfterTheOwnPrepareIsCaught) {
  EXPECT_GT(search_all(2, Protocol::free_after_own_prepare).violations, 0u);
}

TEST(CommitModel, AManifestBeforeItsDataIsDurableIsCaught) {
  EXPECT_GT(search_all(2, Protocol::manifest_before_data_sync).violations, 0u);
}

}  // namespace
}  // namespace ebb::commit_model
