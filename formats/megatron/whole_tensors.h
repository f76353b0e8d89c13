// Whole tensors of a model and its states out of the parts that ranks of tensor and pipeline
// parallelism have. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ebb/formats/megatron/rank_model.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats::megatron {

class WholeTensors {
 public:
  // The checkpoint, which is borrowed, gets them; so many ranks cut a tensor.
  WholeTensors(torch_save::FileCheckpoint& checkpoint, std::uint32_t ranks)
      : checkpoint_(checkpoint), ranks_(ranks) {}

  // A part that lies in the file of a rank; `state`: "" of the model's own tensor, else the word
  // that Megatron has for it. A copy of a part that is there has to be the same.
  Result<> add(const WholePlace& place, std::string_view state, torch_save::OpenFile& file,
               const RankPlace& rank, const TorchTensor& part);
  // One that is not read.
  void leave(const WholePlace& place, std::string_view state, UnreadForm form);

  Result<> prove_whole() const;
  std::vector<UnreadAt> unread() const;  // ascending

 private:
  struct Known {
    std::size_t number = 0;               // in the catalog
    std::string file;                     // where it was first
    std::map<Shape, std::uint64_t> tags;  // of its chunks, by their offset
  };

  Known& known_at(const WholePlace& place, std::string_view state,
                  const torch_save::OpenFile& file);
  Result<> add_box(const std::string& key, bool must_agree, torch_save::OpenFile& file,
                   const RankPlace& rank, Box box, TorchTensor part);
  Error conflict(const torch_save::OpenFile& file, const std::string& key,
                 std::string_view what) const;

  torch_save::FileCheckpoint& checkpoint_;
  std::uint32_t ranks_;
  std::map<std::string, Known> known_;  // by key
  std::map<std::size_t, UnreadForm> unread_;
};

}  // namespace ebb::formats::megatron
