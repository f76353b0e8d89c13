// Steps whose bytes were said beforehand.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/support/watched_ranks.h"

namespace ebb::test {

// A step for each norm, which is what it answers; every rank sends the bytes that its plan says.
// `trainer.step()` makes one.
template <typename Trainer>
Result<> expect_said_steps(Trainer& trainer, libmuon::Communicator& ranks,
                           const libmuon::EngineConfig& config, const Sent& sent,
                           const std::vector<double>& norms, const std::string& what) {
  EBB_TRY_ASSIGN(const auto plan, libmuon::Engine::plan(config, ranks.rank()));
  for (const double norm : norms) {
    EBB_TRY(ranks.agree(0));
    const std::uint64_t before = sent.from(index_of(ranks.rank()));
    EBB_TRY(ranks.agree(0));
    EBB_TRY_ASSIGN(const auto result, trainer.step());
    EXPECT_EQ(result.norm, norm) << what;
    EBB_TRY(ranks.agree(0));
    EXPECT_EQ(sent.from(index_of(ranks.rank())) - before, plan.step_sent_bytes) << what;
  }
  return {};
}

}  // namespace ebb::test
