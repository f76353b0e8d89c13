// Folders whose parts are of several formats, read as one checkpoint: a model, its optimizers and
// what the job keeps of its own, as transformers' Trainer, accelerate and Lightning lay them out.
// docs/formats/folders.md.
#pragma once

#include <cstdint>
#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

enum class FolderKind : std::uint8_t {
  trainer,     // model.safetensors and others, optimizer.pt
  accelerate,  // what accelerate's save_state leaves
  fsdp,        // the two of them with FSDP: pytorch_model_fsdp_0/ and optimizer_0/, or a file each
  lightning,   // DCP with meta.pt
};

bool detect_folder(FolderKind kind, const SourceTree& tree);

// Each part as its own format reads it, at its place in one state dict: "model", "optimizer",
// "scheduler", ... A part that is damaged fails, and says how to read the others.
Result<std::unique_ptr<Checkpoint>> describe_folder(FolderKind kind,
                                                    std::shared_ptr<const SourceTree> tree);

ResumeRules folder_resume(FolderKind kind);

}  // namespace ebb::formats
