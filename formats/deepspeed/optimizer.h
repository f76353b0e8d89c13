// One rank's optimizer file. Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "formats/deepspeed/partition.h"

namespace formats {

struct DsRankFile {
  const SourceTree& tree;
  const TorchArchive& archive;
  std::uint32_t file = 0;  // index into Catalog::files
  std::string where;
  std::string folder;  // "" or "<tag>/": swap files lie below it
  Rank rank{};
  std::uint32_t world = 1;
};

// The number of ranks, as an optimizer file records it.
Result<std::uint32_t> ds_partition_count(const PickleGraph& graph);

class DsOptimizer {
 public:
  DsOptimizer(const DsRankFile& file, const std::vector<std::vector<DsParam>>& shapes,
              DsCheckpoint& checkpoint, DsPartitions& partitions)
      : file_(file),
        graph_(file.archive.graph()),
        shapes_(shapes),
        checkpoint_(checkpoint),
        partitions_(partitions) {}

  // Adds the rank's master weights and optimizer state to the checkpoint.
  Result<> read();

  std::int64_t stage() const { return stage_; }
  const std::vector<GroupEntry>& groups() const { return groups_; }
  // What is not a tensor: step counters, the loss scaler.
  std::vector<ValueEntry> take_values() { return std::move(values_); }

 private:
  Error bad(Code code, std::string_view why) const;
  Result<std::vector<PickleId>> tensors_of(std::string_view name) const;
  Result<> read_groups(PickleId state);
  Result<> read_partitions(std::string_view masters, PickleId base);
  Result<> read_states(const DsGroup& group, std::size_t number, PickleId states, PickleId master);
  Result<> add_state(const DsGroup& group, std::size_t number, const std::string& state,
                     PickleId tensor, PickleId master);
  Result<DsFlat> swapped(std::string_view state, PickleId master, std::uint64_t elems);
  Result<DsGroup> group_of(std::size_t number);
  void read_values();

  const DsRankFile& file_;
  const PickleGraph& graph_;
  const std::vector<std::vector<DsParam>>& shapes_;
  DsCheckpoint& checkpoint_;
  DsPartitions& partitions_;
  PickleId top_ = kNoPickle;  // the dict under "optimizer_state_dict"
  std::int64_t stage_ = 0;
  std::vector<GroupEntry> groups_;
  std::vector<std::uint8_t> whole_momentum_;  // per flat buffer: its group runs Muon
  std::vector<ValueEntry> values_;
};

}  // namespace formats
