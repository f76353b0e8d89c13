// One rank's optimizer file. Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/partition.h"

namespace ebb::formats::deepspeed {

struct RankFile {
  const SourceTree& tree;
  const TorchArchive& archive;
  std::uint32_t file = 0;  // index into Catalog::files
  std::string where;
  std::string folder;  // "" or "<tag>/": swap files lie below it
  Rank rank{};         // among the data-parallel ones
  Rank holder{};       // among all
};

// The number of ranks that share a group, as an optimizer file records it: one for all groups, or
// one for each of them where there are experts.
Result<std::vector<std::uint32_t>> partition_counts(const PickleGraph& graph);

// Whether an optimizer file is stage 3's.
bool is_stage3(const PickleGraph& graph);

// Of the ranks that share a group's buffer, which one this is.
struct GroupPlace {
  Rank rank{};
  std::uint32_t ranks = 1;
};

// What the files of all ranks must agree about, and where the next rank's partitions begin.
struct FlatState {
  std::vector<Group> groups;             // as param_shapes lists them
  std::vector<GroupPlace> places;        // of the rank that is read
  std::vector<std::uint64_t> starts;     // stages 1 and 2: elements of the group before this rank
  std::vector<std::uint64_t> partition;  // stages 1 and 2: length of every rank's buffer, 0 unknown
  // Stages 1 and 2: padding lies between partitions and not at the tail only, as where no cut may
  // split a parameter.
  bool padded_between = false;
};

// What an optimizer file says beside its tensors.
struct OptimizerFacts {
  std::int64_t stage = 0;
  std::string zero_optimizer;  // class names
  std::string optimizer;
  std::vector<GroupEntry> groups;
  std::vector<std::optional<double>> steps;  // per flat buffer
  Value loss_scaler;
  std::vector<ValueEntry> values;  // everything else
};

// An entry of a list param_groups, and the flat buffers it owns.
struct ReadGroup {
  GroupEntry entry;
  std::vector<std::size_t> buffers;
};
// `shapes`: as param_shapes lists the buffers. Settings that are tensors of one element, such as
// learning rates that a compiled step can change, become numbers.
Result<std::vector<ReadGroup>> param_groups_of(const TorchArchive& archive, PickleId list,
                                               const Config& config,
                                               const std::vector<Group>& shapes);
// The entries of base's dict `state`, by flat buffer; in the pickle they come in the order in which
// an engine made them.
std::map<std::int64_t, PickleId> states_by_buffer(const PickleGraph& graph, PickleId base);
// What the engine keeps beside its partitions: overflow, clip_grad.
Result<std::vector<ValueEntry>> engine_values_of(const PickleGraph& graph, PickleId dict);
// The class of stages 1 and 2, which the files do not name: `stage` is their entry zero_stage.
std::string_view zero12_class(PickleId stage);

class OptimizerReader {
 public:
  OptimizerReader(const RankFile& file, FlatState& state, ZeroCheckpoint& checkpoint,
                  Partitions& partitions)
      : file_(file),
        graph_(file.archive.graph()),
        state_(state),
        checkpoint_(checkpoint),
        partitions_(partitions) {}

  // Adds the rank's master weights and optimizer state to the checkpoint.
  Result<> read();

  OptimizerFacts take_facts() { return std::move(facts_); }

 private:
  Error bad(Code code, std::string_view why) const;
  std::string where(std::size_t number) const;
  Result<std::vector<PickleId>> tensors_of(std::string_view name) const;
  Result<> check_counts() const;
  Result<> refuse_experts() const;
  Result<> read_groups(PickleId base);
  Result<> name_groups_of_elastic(std::size_t count);
  Result<> read_partitions(std::string_view masters, PickleId base);
  Result<> read_states(std::size_t number, const Cut& cut, PickleId states, PickleId master);
  Result<> add_state(std::size_t number, const Cut& cut, const std::string& state, PickleId tensor,
                     PickleId master);
  Result<Flat> swapped(std::string_view state, PickleId master, std::uint64_t elems);
  const Group& with_gaps(std::size_t number);
  Result<Cut> cut_of(std::size_t number, const Group& group, PickleId master);

  const RankFile& file_;
  const PickleGraph& graph_;
  FlatState& state_;
  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  PickleId top_ = kNoPickle;  // the dict under "optimizer_state_dict"
  Config config_;
  OptimizerFacts facts_;
  const Group* group_ = nullptr;              // the one being read, with alignment gaps
  Group gapped_;                              // it, where it has any
  std::vector<std::uint8_t> whole_momentum_;  // per flat buffer: its parameters' momentum is whole
};

}  // namespace ebb::formats::deepspeed
