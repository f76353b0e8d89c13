// The optimizer of a run without ZeRO, which lies in the model file: torch's own state dict, whose
// numbers become names by what lies beside them, and in half precision the master weights. Internal
// to formats/deepspeed. Sources: DeepSpeed 0.19.8 runtime/fp16/fused_optimizer.py,
// unfused_optimizer.py and engine.py.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/model_copies.h"
#include "ebb/formats/deepspeed/optimizer.h"

namespace ebb::formats::deepspeed {

// Whether the model file is one of a run without ZeRO.
bool is_unsharded(const PickleGraph& graph);

class UnshardedOptimizer {
 public:
  // `model`: the model file, which may be the same. REQUIRES: the weights were read.
  UnshardedOptimizer(const File& file, const PickleGraph& model, ZeroCheckpoint& checkpoint,
                     Partitions& partitions)
      : file_(file),
        graph_(file.graph()),
        model_(model),
        checkpoint_(checkpoint),
        partitions_(partitions) {}

  // Adds master weights and states.
  Result<> read(const SourceTree& tree);

  // What each number stands for: one parameter, or those of a group end to end.
  const std::vector<Group>& numbers() const { return numbers_; }
  OptimizerFacts take_facts() { return std::move(facts_); }
  // Whether elements tell the names of what has states, not shapes and order alone.
  bool has_masters() const { return !masters_.empty() || numbers_.empty(); }

 private:
  Error bad(Code code, std::string_view why) const;
  Result<> count_numbers(PickleId groups);
  Result<> find_masters(PickleId top, PickleId groups);
  Result<> name_by_elements(const SourceTree& tree);
  Result<> name_by_shapes(PickleId base, PickleId groups);
  void note_names(std::size_t states);
  Result<> add_all(PickleId base);
  Result<> add_states(std::size_t number, PickleId states);
  Result<> add(std::size_t number, const std::string& state, PickleId tensor);

  const File& file_;
  const PickleGraph& graph_;
  const PickleGraph& model_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  Masters kept_ = Masters::whole;
  std::vector<Group> numbers_;
  std::vector<PickleId> masters_;  // of each number; none in full precision
  NamedBy named_ = NamedBy::recorded;
  OptimizerFacts facts_;
};

}  // namespace ebb::formats::deepspeed
