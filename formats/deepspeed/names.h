// The file names of a DeepSpeed checkpoint. "pp_rank" in them means the data-parallel rank.
// Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats::deepspeed {

struct FileName {
  enum class Kind { model, optimizer, layer, expert, expert_optimizer } kind = Kind::model;
  // Absent in the one model file of stages 1 and 2; of an expert_optimizer the expert-parallel
  // rank.
  std::optional<std::uint32_t> data_rank;
  std::uint32_t model_rank = 0;  // of tensor and pipeline parallelism; of a layer tensor alone
  bool bf16 = false;             // begins with "bf16_"
  std::uint32_t layer = 0;       // of a pipeline; of those with experts
  std::uint32_t expert = 0;      // among all
};
// The last component of a path; nullopt for names of other files.
std::optional<FileName> parse_name(std::string_view file);
// Whether the file at this path, somewhere in a tree, is one of a checkpoint there: in its root, or
// in the folder of a tag. What lies deeper belongs to a checkpoint in a folder of the tree.
std::optional<FileName> file_of_checkpoint(std::string_view path);

// The files of one model-parallel rank, by data-parallel rank.
struct RankFiles {
  std::map<std::uint32_t, std::string> model;      // stages 1 and 2: one, as rank 0
  std::map<std::uint32_t, std::string> optimizer;  // without ZeRO: none
};
using PairOfNumbers = std::pair<std::uint32_t, std::uint32_t>;
// The files of the tag that `latest` names.
struct Files {
  std::string tag;                               // the folder's name, "" when nothing says it
  std::string folder;                            // "" or "<tag>/"
  std::vector<RankFiles> of_model_ranks;         // at least one
  std::map<PairOfNumbers, std::string> layers;   // of a pipeline: layer, tensor-parallel rank
  std::map<PairOfNumbers, std::string> experts;  // layer, number among all
  std::map<std::uint32_t, std::string> expert_optimizers;  // by expert-parallel rank
};
Result<Files> find_files(const SourceTree& tree);
// Of ZeRO's files only model files are there.
Error no_optimizer(const SourceTree& tree, const Files& files);
// What another rank calls the file that this one calls `file`.
std::string file_of_rank(std::string_view file, std::uint32_t rank);
// The same of another model-parallel rank.
std::string file_of_model_rank(std::string_view file, std::uint32_t model_rank);
// About a checkpoint as a whole.
Error refused(const SourceTree& tree, Code code, const std::string& why, std::string hint = {});
// A file that a rank should have left; `why` names it.
Error missing_file(const SourceTree& tree, const std::string& why, const std::string& file);
// Several folders, each with its '/', and no file `latest` among them.
Error no_latest(const SourceTree& tree, std::string_view latest,
                const std::set<std::string>& folders);

// What `latest` or `latest_universal` says; refused when that cannot be the name of a folder.
Result<std::string> read_latest(const SourceTree& tree, std::string_view file);
// The name of a tag's folder given with its '/', or of the tree itself when that is "".
std::string tag_of(const SourceTree& tree, std::string_view folder);
// Of a folder that no file `latest` names.
constexpr std::string_view kNoLatest =
    "no file latest: unless the job passes the tag, DeepSpeed's load_checkpoint() loads nothing "
    "and the job starts from scratch";
// Of a form in which the engine's own settings hold.
constexpr std::string_view kElastic =
    "elastic optimizer state: the hyper-parameters of the groups are not stored";
// Catalog::partition of stage 0.
constexpr std::string_view kWithoutZero = "whole tensors in one file (stage 0)";
// The beginning of it where there are other kinds of ranks than data-parallel ones.
constexpr std::string_view kWithoutZeroInParts = "without ZeRO (stage 0)";
// In Catalog::partition, behind a number.
constexpr std::string_view kStages = " pipeline stages";
constexpr std::string_view kTensorRanks = " tensor-parallel ranks";
constexpr std::string_view kWithExperts = ", with experts";
// What the folder of a universal checkpoint adds to the tag of the one it was made from.
constexpr std::string_view kUniversalSuffix = "_universal";
// What a universal checkpoint calls the files of masters.
constexpr std::string_view kMasters = "fp32";
// "a/b/" of "a/b/c", "" of "c".
std::string_view folder_of(std::string_view path);

}  // namespace ebb::formats::deepspeed
