// What the registry knows of these formats.
#pragma once

#include <utility>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/state_dict/state_dict.h"

namespace ebb::formats::folders {

class Format : public formats::Format {
 public:
  bool detect(const SourceTree& tree) const override { return detect_folder(kind_, tree); }
  Result<std::unique_ptr<Checkpoint>> describe(
      std::shared_ptr<const SourceTree> tree) const override {
    return describe_folder(kind_, std::move(tree));
  }
  Result<EmitPlan> emit(const EmitRequest&) const override {
    return Error{Code::unsupported, compose("{} is read, and not written", name()),
                 "--to dcp and --to torch keep all of it under the same keys"};
  }
  ResumeRules resume_rules() const override { return folder_resume(kind_); }
  void respell(Catalog& content) const override { respell_as_state_dict(content); }

 protected:
  constexpr Format(FolderKind kind, std::string_view name, std::string_view summary, Parts parts)
      : formats::Format({.name = name,
                         .summary = summary,
                         .default_policy = Policy::replicated,
                         .keys = Keys::state_dict,
                         .parts = parts,
                         .written = Written::no}),
        kind_(kind) {}

 private:
  FolderKind kind_;
};

class TrainerFormat final : public Format {
 public:
  constexpr TrainerFormat()
      : Format(FolderKind::trainer, "transformers", "a folder of transformers' Trainer",
               Parts::files) {}
};

class AccelerateFormat final : public Format {
 public:
  constexpr AccelerateFormat()
      : Format(FolderKind::accelerate, "accelerate", "a folder of accelerate's save_state",
               Parts::files) {}
};

class FsdpFormat final : public Format {
 public:
  constexpr FsdpFormat()
      : Format(FolderKind::fsdp, "accelerate-fsdp", "the same with FSDP, sharded or full",
               Parts::files) {}
};

class LightningFormat final : public Format {
 public:
  constexpr LightningFormat()
      : Format(FolderKind::lightning, "lightning", "a sharded .ckpt folder of Lightning",
               Parts::found) {}
};

}  // namespace ebb::formats::folders
