// What the registry knows of this format.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/state_dict/state_dict.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats::torch_save {

inline constexpr std::string_view kEndings[] = {".pt", ".pth", ".bin"};

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format(
            {.name = "torch",
             .summary = "one torch.save file: .pt, .pth or .bin, zip or the older stream",
             .default_policy = Policy::replicated,
             .keys = Keys::state_dict,
             .resumes = Resumes::nothing,
             .composites = Composites::classes,
             .endings = kEndings}) {}
  bool detect(const SourceTree& tree) const override { return detect_torch(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_torch(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override { return emit_torch(request); }
  ResumeRules resume_rules() const override { return torch_resume(); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return torch_problems(tree, catalog);
  }
  std::vector<std::string> saves_in(const std::shared_ptr<const SourceTree>& tree) const override {
    return torch_saves_in(tree);
  }
  void respell(Catalog& content) const override { respell_as_state_dict(content); }
};

}  // namespace ebb::formats::torch_save
