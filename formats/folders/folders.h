// Folders whose parts are of several formats, read as one checkpoint: a model, its optimizers and
// what the job keeps of its own, as transformers' Trainer, accelerate and others lay them out.
// docs/formats/folders.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

enum class FolderKind : std::uint8_t {  // tables of them are in this order
  trainer,                              // model.safetensors and others, optimizer.pt
  accelerate,                           // what accelerate's save_state leaves
  fsdp,       // the two of them with FSDP: pytorch_model_fsdp_0/ and optimizer_0/, or a file each
  lightning,  // DCP with meta.pt
  olmo,       // model_and_optim/ and train/
  automodel,  // model/, optim/, rng/
  prime_rl,   // trainer/
  nanochat,   // model_000100.pt, optim_000100_rank0.pt, meta_000100.json
};

// The format's name.
constexpr std::string_view name_of(FolderKind kind) {
  constexpr std::string_view kNames[] = {"transformers", "accelerate", "accelerate-fsdp",
                                         "lightning",    "olmo-core",  "automodel",
                                         "prime-rl",     "nanochat"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool detect_folder(FolderKind kind, const SourceTree& tree);
// Of FSDP's two folders the one that is not there, where the other is; "": both are, or neither.
std::string_view missing_half(const SourceTree& tree);

// Each part as its own format reads it, at its place in one state dict: "model", "optimizer",
// "scheduler", ... A part that is damaged fails, and says how to read the others.
Result<std::unique_ptr<Checkpoint>> describe_folder(FolderKind kind,
                                                    std::shared_ptr<const SourceTree> tree);

// Of a Trainer: an optimizer of a later save than trainer_state.json.
std::vector<Error> folder_problems(FolderKind kind, const std::shared_ptr<const SourceTree>& tree,
                                   const Catalog& catalog);

ResumeRules folder_resume(FolderKind kind);

// Content as the state dict of such a folder, whatever it was of: a model, its one optimizer, the
// step. A Trainer's optimizer has numbers for names, in the order of the groups.
void respell_for_folder(FolderKind kind, Catalog& content);

// Of a Trainer, or of accelerate with FSDP: a folder that the framework resumes from. Files that
// the content has nothing for are not made up, but for the step of a Trainer. Code::unsupported
// without a model or an optimizer.
Result<EmitPlan> emit_folder(FolderKind kind, const EmitRequest& request);

}  // namespace ebb::formats
