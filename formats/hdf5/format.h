// What the registry knows of this format.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/hdf5.h"

namespace ebb::formats::hdf5 {

inline constexpr std::string_view kEndings[] = {".h5", ".hdf5"};

class Format final : public formats::Format {
 public:
  constexpr Format()
      : formats::Format({.name = "hdf5",
                         .summary = "one file, or one per rank under virtual datasets",
                         .holds = Holds::keyed_tensors,
                         .packs = Packs::zstd,
                         .resumes = Resumes::nothing,
                         .composites = Composites::parts,
                         .endings = kEndings,
                         .reader_program = kReaderProgram}) {}
  bool detect(const SourceTree& tree) const override { return detect_hdf5(tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_hdf5(std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest& request) const override { return emit_hdf5(request); }
  ResumeRules resume_rules() const override { return hdf5_resume(); }
};

}  // namespace ebb::formats::hdf5
