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
  Result<EmitPlan> emit(const EmitRequest& request) const override {
    if (traits().written == Written::yes) return emit_folder(kind_, request);
    return Error{Code::unsupported, compose("{} is read, and not written", name()),
                 "--to dcp and --to torch keep all of it under the same keys"};
  }
  ResumeRules resume_rules() const override { return folder_resume(kind_); }
  std::vector<Error> problems(const std::shared_ptr<const SourceTree>& tree,
                              const Catalog& catalog) const override {
    return folder_problems(kind_, tree, catalog);
  }
  void respell(Catalog& content) const override {
    if (traits().written == Written::yes) return respell_for_folder(kind_, content);
    respell_as_state_dict(content);
  }

 protected:
  constexpr Format(FolderKind kind, const FormatTraits& traits)
      : formats::Format(traits), kind_(kind) {}

 private:
  FolderKind kind_;
};

class TrainerFormat final : public Format {
 public:
  constexpr TrainerFormat()
      : Format(FolderKind::trainer, {.name = name_of(FolderKind::trainer),
                                     .summary = "a folder of transformers' Trainer",
                                     .default_policy = Policy::replicated,
                                     .keys = Keys::state_dict,
                                     .parts = Parts::files,
                                     .params = Params::numbered,
                                     .file_size = FileSize::limited,
                                     .composites = Composites::classes}) {}
};

class AccelerateFormat final : public Format {
 public:
  constexpr AccelerateFormat()
      : Format(FolderKind::accelerate, {.name = name_of(FolderKind::accelerate),
                                        .summary = "a folder of accelerate's save_state",
                                        .keys = Keys::state_dict,
                                        .parts = Parts::files,
                                        .written = Written::no}) {}
};

class FsdpFormat final : public Format {
 public:
  constexpr FsdpFormat()
      : Format(FolderKind::fsdp,
               {.name = name_of(FolderKind::fsdp),
                .summary = "the same with FSDP; written sharded, read in full too",
                .keys = Keys::state_dict,
                .parts = Parts::files,
                .composites = Composites::classes,
                .block_states = BlockStates::refused,
                .tied_names = TiedNames::each}) {}
};

// Those that are read alone.
struct TrainersFolder {
  FolderKind kind;
  std::string_view summary;
  Parts parts;  // whether they lie in files of their own
};

inline constexpr TrainersFolder kLightningsFolder{
    FolderKind::lightning, "a sharded .ckpt folder of Lightning", Parts::found};
inline constexpr TrainersFolder kOlmosFolder{FolderKind::olmo, "a step of OLMo-core", Parts::found};
inline constexpr TrainersFolder kAutoModelsFolder{
    FolderKind::automodel, "an epoch_<E>_step_<S> of NeMo AutoModel", Parts::files};
inline constexpr TrainersFolder kPrimeRlsFolder{FolderKind::prime_rl, "a step of prime-rl",
                                                Parts::found};
inline constexpr TrainersFolder kNanochatsFolder{FolderKind::nanochat,
                                                 "the newest step of nanochat's", Parts::files};

template <const TrainersFolder& folder>
class ReadFormat final : public Format {
 public:
  constexpr ReadFormat()
      : Format(folder.kind, {.name = name_of(folder.kind),
                             .summary = folder.summary,
                             .keys = Keys::state_dict,
                             .parts = folder.parts,
                             .written = Written::no}) {}
};

}  // namespace ebb::formats::folders
