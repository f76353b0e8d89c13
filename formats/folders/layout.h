// Which files of a folder are which part of a save that a trainer laid out, told by names alone.
// Internal to formats/folders.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/folders/folders.h"

namespace ebb::formats::folders {

struct Part {
  enum class Kind : std::uint8_t { model, optimizer, job };
  enum class Bytes : std::uint8_t { safetensors, torch_save, dcp, json };
  Kind kind = Kind::job;
  Bytes bytes = Bytes::torch_save;
  std::string key;         // of the joined state dict, below which it lies; "": at its top
  std::string instead_of;  // the word below which it lies in its own, where it does
  // That is a checkpoint of its own; "": the tree itself, or some files of it.
  std::string folder;
  std::vector<std::string> files;
  // For people: the folder, or the first of the files.
  std::string place() const { return folder.empty() ? files.front() : folder; }
};

// In the order in which they are read, models first; empty: the folder is no such save. A save of
// Trainer or accelerate has both a model and an optimizer. What every rank writes is read of the
// first 64 ranks.
std::vector<Part> parts_in(FolderKind kind, const SourceTree& tree);
// Of trainers with folders of their own (run_layout.cpp).
std::vector<Part> olmo_parts(const SourceTree& tree);
std::vector<Part> automodel_parts(const SourceTree& tree);
std::vector<Part> prime_rl_parts(const SourceTree& tree);
// Of several saves the newest, which nanochat's own loader takes.
std::vector<Part> nanochat_parts(const SourceTree& tree);

// Whether a Trainer keeps what lies in the folder: it calls files otherwise than accelerate alone.
enum class TrainersOwn : std::uint8_t { no, yes };

// A file of what a job keeps, in a folder that is written.
struct JobFile {
  std::string name;
  std::span<const std::string_view> random_numbers;  // without one of which its loader fails
};
// Whether some folder has a file for what a job keeps below the key.
bool is_job_key(std::string_view key);
// Random numbers of either framework's, which the other has no use for.
bool is_random_numbers(std::string_view key);
// Of what lies below the key in the state dict; nullopt: no file is for it.
std::optional<JobFile> job_file(FolderKind kind, const std::string& key, TrainersOwn own);

// Whether a job has the master for its weights, and rounds it to what it computes with: `param`.
bool is_rounded_master(const TensorEntry& param, const TensorEntry& master);

// How many ranks left a file of their own: random numbers, where the data was; 0: none.
std::size_t ranks_with_files(const SourceTree& tree);

}  // namespace ebb::formats::folders
