// What the registry knows of this format.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/torch_checkpointing/torch_checkpointing.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats::torch_checkpointing {

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format({.name = "torch-checkpointing",
                         .summary = "a folder of the package torch_checkpointing, 0.1",
                         .keys = Keys::state_dict,
                         .composites = Composites::classes}) {}
  bool detect(const SourceTree& tree) const override { return detect_torch_checkpointing(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_torch_checkpointing(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_torch_checkpointing(request);
  }
  ResumeRules resume_rules() const override { return torch_checkpointing_resume(); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return torch_problems(tree, catalog);
  }
  void respell(Catalog& content) const override { respell_for_torch_checkpointing(content); }
};

}  // namespace ebb::formats::torch_checkpointing
