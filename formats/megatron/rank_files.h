// The files of --ckpt-format torch: mp_rank_TT[_PPP]/model_optim_rng.pt, one for each rank of
// tensor and pipeline parallelism, and what a model's part in one consists of. Internal to
// formats/megatron.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch_save/open_file.h"

namespace ebb::formats::megatron {

constexpr std::string_view kModelFile = "model_optim_rng.pt";
constexpr std::string_view kBuffersFile = "distrib_optim.pt";
constexpr std::string_view kLayerWise = "layer_wise_optimizer_";  // its rank and ".pt" behind it

constexpr std::string_view kConvertHint =
    "let the job load it once with --ckpt-convert-format torch_dist and --ckpt-convert-save DIR: "
    "torch_dist is read";

// A rank's place among those that have a part of the model each.
struct RankPlace {
  std::uint32_t tensor = 0;
  std::uint32_t pipeline = 0;
  friend auto operator<=>(const RankPlace&, const RankPlace&) = default;
};

// A tensor of a model's part, in a rank's own shape.
struct LocalTensor {
  std::string key;
  std::variant<TorchTensor, UnreadForm> tensor;

  const TorchTensor* read() const { return std::get_if<TorchTensor>(&tensor); }
};

// One of a stage's parts of the model: several with a virtual pipeline.
struct ModelChunk {
  std::vector<LocalTensor> tensors;  // in the model's order
  std::map<std::string, std::size_t, std::less<>> numbers;
  std::vector<std::pair<std::string, PickleId>> others;

  const TorchTensor* find(std::string_view key) const;
};

// A whole number or a switch among the arguments that the file holds; nullopt: it is not said.
std::optional<std::int64_t> argument_in(const torch_save::OpenFile& file, std::string_view name);

struct RankFile {
  RankPlace at;
  std::string folder;  // "mp_rank_00_001"
  torch_save::OpenFile file;
  std::vector<ModelChunk> chunks;

  std::string file_beside(std::string_view name) const;
  // The value of a key of the dict that the file holds; kNoPickle: it has none.
  PickleId find(std::string_view key) const;
};

struct RankGrid {
  std::uint32_t tensor = 1;
  std::uint32_t pipeline = 1;
  // All stages of tensor-parallel rank 0 first, in order; then those of the next.
  std::vector<RankFile> files;

  const RankFile& at(RankPlace place) const {
    return files[std::size_t{place.tensor} * pipeline + place.pipeline];
  }
  std::uint32_t number_of(RankPlace place) const { return place.pipeline * tensor + place.tensor; }
};

// Files of ranks that are not there: the first of them, and how many.
class MissingFiles {
 public:
  void add(std::string name);
  bool none() const { return count_ == 0; }
  std::uint64_t count() const { return count_; }
  // Code::incomplete, of so many files. REQUIRES: there are some.
  Error error(const SourceTree& tree, std::uint64_t all) const;

 private:
  std::vector<std::string> first_;
  std::uint64_t count_ = 0;
};

// Opens them all. Code::incomplete where some are missing, Code::unsupported for experts.
Result<RankGrid> open_rank_files(const SourceTree& tree, torch_save::FileCheckpoint& checkpoint,
                                 UnknownNames& unknown);

}  // namespace ebb::formats::megatron
