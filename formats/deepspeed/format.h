// What the registry knows of these formats.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/deepspeed/deepspeed.h"

namespace ebb::formats::deepspeed {

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format({.name = "deepspeed",
                         .summary = "DeepSpeed ZeRO stages 1 to 3, Adam and Muon",
                         .default_policy = Policy::zero3,
                         .steps = StepCounters::values,
                         .block_states = BlockStates::refused}) {}
  bool detect(const SourceTree& tree) const override { return detect_deepspeed(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_deepspeed(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_deepspeed(request);
  }
  ResumeRules resume_rules() const override { return deepspeed_resume(); }
  Policy policy_for(const Catalog& content) const override { return deepspeed_policy(content); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return deepspeed_problems(tree, catalog);
  }
};

class UniversalFormat final : public formats::Format {
 public:
  constexpr UniversalFormat()
      : formats::Format({.name = "deepspeed-universal",
                         .summary = "DeepSpeed universal, Adam and Muon",
                         .default_policy = Policy::replicated,
                         .steps = StepCounters::values,
                         .block_states = BlockStates::refused}) {}
  bool detect(const SourceTree& tree) const override { return detect_deepspeed_universal(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_deepspeed_universal(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_deepspeed_universal(request);
  }
  ResumeRules resume_rules() const override { return deepspeed_universal_resume(); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return deepspeed_problems(tree, catalog);
  }
};

}  // namespace ebb::formats::deepspeed
