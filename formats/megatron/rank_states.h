// An optimizer's states in the files of --ckpt-format torch, given to the parameters of the model
// beside them: flat buffers of the distributed optimizer, and numbered tensors of the others.
// Whose they are follows from Megatron's order; that it does is proved by the master weights, which
// rounded are the model's. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/megatron/whole_tensors.h"
#include "ebb/formats/pickle/known_globals.h"

namespace ebb::formats::megatron {

// What the readers of states work with, all borrowed.
struct RankSource {
  const SourceTree& tree;
  torch_save::FileCheckpoint& checkpoint;
  UnknownNames& unknown;
  RankGrid& grid;
  const RankModel& model;
  WholeTensors& tensors;

  // A file that lies beside a rank's model, as one of that rank.
  Result<torch_save::OpenFile> open(const RankFile& rank, std::string_view name) const;
};

// A tensor of a rank's model as its optimizer knows it.
struct LocalParam {
  const LocalTensor* tensor = nullptr;
  std::size_t chunk = 0;
  WholePlace place;

  const TorchTensor& weight() const { return *tensor->read(); }
};
using Members = std::vector<const LocalParam*>;
// In the model's order. What is not read has no states that could be.
std::vector<LocalParam> params_of(const RankModel& model, const RankFile& rank);

// Whether the master weight, rounded to what the weight is, is the weight: its first and its last
// elements.
Result<bool> are_rounded(const torch_save::OpenFile& masters, const TorchTensor& master,
                         const torch_save::OpenFile& weights, const TorchTensor& weight);

// Leaves the states of all these parameters unread. `hint`: "" says that Megatron can convert.
void leave_states(const RankSource& source, const std::vector<LocalParam>& params,
                  const std::vector<std::string>& words, std::string_view why,
                  std::string_view hint = {});
// Where groups of an optimizer are there, and none of its files: its masters stand for all states.
void leave_missing_states(const RankSource& source);

// distrib_optim.pt of each rank, as far as they are there. True: they are.
Result<bool> read_buffers(const RankSource& source);

// Groups and scaler of an optimizer, or of each of a list, without its states.
Result<Value> optimizer_value(const torch_save::OpenFile& file, PickleId id);

struct NumberedFound {
  bool any = false;
  std::map<std::string, std::int64_t> steps;  // of parameters, where their states count them
  std::optional<Value> optimizer;             // where it lies in files of its own
};
// Numbered states: of the model's own file, or of layer_wise_optimizer_<N>.pt beside it.
Result<NumberedFound> read_numbered(const RankSource& source);

}  // namespace ebb::formats::megatron
