// What the registry knows of these formats.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/megatron/megatron.h"

namespace ebb::formats::megatron {

class TorchDistFormat final : public formats::Format {
 public:
  constexpr TorchDistFormat()
      : formats::Format({.name = "megatron",
                         .summary = "Megatron torch_dist, megatron-core 0.12 to 0.19",
                         .steps = StepCounters::values,
                         .block_states = BlockStates::refused}) {}
  bool detect(const SourceTree& tree) const override { return detect_megatron(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_megatron(std::move(tree));
  }
  Result<std::unique_ptr<Checkpoint>> describe_with_holes(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_megatron_with_holes(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_megatron(request);
  }
  ResumeRules resume_rules() const override { return megatron_resume(); }
  std::string_view why_bound(const TensorEntry& tensor) const override {
    return why_bound_to_megatron(tensor);
  }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return megatron_problems(tree, catalog);
  }
};

class FsdpFormat final : public formats::Format {
 public:
  constexpr FsdpFormat()
      : formats::Format({.name = "megatron-fsdp",
                         .summary = "Megatron-FSDP fsdp_dtensor",
                         .block_states = BlockStates::refused}) {}
  bool detect(const SourceTree& tree) const override { return detect_megatron_fsdp(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_megatron_fsdp(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_megatron_fsdp(request);
  }
  ResumeRules resume_rules() const override { return megatron_fsdp_resume(); }
  std::optional<CommonNames> common_names(const Catalog& catalog) const override {
    return megatron_fsdp_names(catalog);
  }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return megatron_problems(tree, catalog);
  }
};

class RankFormat final : public formats::Format {
 public:
  constexpr RankFormat()
      : formats::Format({.name = "megatron-torch",
                         .summary = "Megatron's --ckpt-format torch, files of each rank",
                         .steps = StepCounters::values,
                         .written = Written::no}) {}
  bool detect(const SourceTree& tree) const override { return detect_megatron_ranks(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_megatron_ranks(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest&) const override {
    return Error{Code::unsupported, "Megatron's --ckpt-format torch is not written",
                 "--to megatron"};
  }
  ResumeRules resume_rules() const override { return megatron_ranks_resume(); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return megatron_rank_problems(tree, catalog);
  }
};

}  // namespace ebb::formats::megatron
