// What the registry knows of this format.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/native/ebb.h"

namespace ebb::formats::native {

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format(
            {.name = "ebb",
             .summary = "a swap store of this library, or the swap directory that holds one",
             .default_policy = Policy::layer_wise,
             .steps = StepCounters::values,
             .composites = Composites::parts,
             .overwriting = Overwriting::noticed}) {}
  bool detect(const SourceTree& tree) const override { return detect_ebb(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_ebb(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override { return emit_ebb(request); }
  ResumeRules resume_rules() const override { return ebb_resume(); }
  void say_for_others(Catalog& content) const override { say_as_torch(content); }
};

}  // namespace ebb::formats::native
