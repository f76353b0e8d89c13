// What the registry knows of this format.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/dcp/dcp.h"

namespace ebb::formats::dcp {

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format({.name = "dcp",
                         .summary = "PyTorch Distributed Checkpoint directory, torch 2.0 to 2.15",
                         .keys = Keys::state_dict,
                         .packs = Packs::zstd,
                         .composites = Composites::classes}) {}
  bool detect(const SourceTree& tree) const override { return detect_dcp(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_dcp(std::move(tree));
  }
  Result<std::unique_ptr<Checkpoint>> describe_with_holes(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_dcp_with_holes(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override { return emit_dcp(request); }
  ResumeRules resume_rules() const override { return dcp_resume(); }
  void respell(Catalog& content) const override { respell_for_dcp(content); }
};

}  // namespace ebb::formats::dcp
