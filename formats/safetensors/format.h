// What the registry knows of this format.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/safetensors/safetensors.h"

namespace ebb::formats::safetensors {

inline constexpr std::string_view kEndings[] = {".safetensors"};

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format({.name = "safetensors",
                         .summary = "one file, several with an index, or torch DCP's shards",
                         .holds = Holds::keyed_tensors,
                         .file_size = FileSize::limited,
                         .resumes = Resumes::nothing,
                         .composites = Composites::parts,
                         .endings = kEndings}) {}
  bool detect(const SourceTree& tree) const override { return detect_safetensors(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_safetensors(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    return emit_safetensors(request);
  }
  ResumeRules resume_rules() const override { return safetensors_resume(); }
};

}  // namespace ebb::formats::safetensors
