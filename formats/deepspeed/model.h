// The model files of a checkpoint: 16-bit weights, buffers, shapes, and everything that the engine
// and its caller keep beside them. Internal to formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/partition.h"

namespace ebb::formats::deepspeed {

// A .pt file of the checkpoint that is being described; it is listed in the catalog.
struct File {
  TorchArchive archive;
  std::uint32_t file = 0;  // index into Catalog::files
  std::string where;       // the file's name for messages
  const PickleGraph& graph() const { return archive.graph(); }
};
// The archive alone; what its pickle names and nobody knows is noted in the checkpoint.
Result<TorchArchive> opened(const SourceTree& tree, ZeroCheckpoint& checkpoint,
                            const std::string& name);
Result<File> open_archive(const SourceTree& tree, ZeroCheckpoint& checkpoint,
                          const std::string& name, std::optional<Rank> rank);
// The same of an archive that is open.
File add_archive(TorchArchive archive, ZeroCheckpoint& checkpoint, const std::string& name,
                 std::optional<Rank> rank);

// What becomes of a checkpoint of which everything was `read`, or not: names that nobody knows are
// among its values, or the error where there is nothing better to say than what a call would make.
Result<std::unique_ptr<Checkpoint>> end_of_description(std::unique_ptr<ZeroCheckpoint> checkpoint,
                                                       const Result<>& read);

Error corrupt(std::string_view where, std::string_view why);

// What a dict holds as a whole number.
std::optional<std::int64_t> integer_at(const PickleGraph& graph, PickleId dict,
                                       std::string_view key);
// Whether a pipeline's layers have files of their own, and a model file names no weights.
bool has_no_module(const PickleGraph& graph);

// param_shapes: the only description of what lies in the flat buffers, and in which order.
Result<std::vector<Group>> shapes_of(const PickleGraph& graph, std::string_view where);

// What the file of rank 0 says that is no tensor.
struct ModelFacts {
  std::string version;
  std::optional<std::int64_t> global_steps;
  std::optional<std::int64_t> ranks;        // dp_world_size
  std::map<std::string, std::string> tied;  // alias -> owner
  std::vector<ValueEntry> engine;           // global_samples, skipped_steps, lr_scheduler, ...
  std::vector<ValueEntry> client;           // what the caller handed over to be kept
};

// Of a file that is a dict of tensors: those, by name. What else it holds is passed over.
Result<std::vector<std::pair<std::string, PickleId>>> tensors_at_the_top(const File& file);
// Whether the tensor is in a form that is not read; it is noted as that then.
bool leave_unread(ZeroCheckpoint& checkpoint, const PickleGraph& graph, PickleId tensor,
                  const std::string& name, const std::string& state);

class ModelReader {
 public:
  ModelReader(ZeroCheckpoint& checkpoint, Partitions& partitions, std::int64_t stage,
              std::uint32_t world)
      : checkpoint_(checkpoint), partitions_(partitions), stage_(stage), world_(world) {}

  // Ranks ascending. Only rank 0's file gives facts and whole tensors.
  Result<> read(const File& file, Rank rank);
  // The same of another rank of tensor or pipeline parallelism, after those facts.
  Result<> read_of_model_rank(const File& file, Rank rank);
  // The facts alone, for a file whose tensors are parts of larger ones.
  Result<> read_facts(const File& file);
  // Of another rank of tensor or pipeline parallelism, after those facts.
  Result<> read_other_part(const File& file);

  const ModelFacts& facts() const { return facts_; }
  // Names of the buffers of all files that were read.
  const std::set<std::string, std::less<>>& buffers() const { return buffers_; }

 private:
  Result<> read_frozen(const File& file, Rank rank);
  Result<> read_module(const File& file);
  Result<> check_same_save(const File& file);
  void read_tied(const PickleGraph& graph);
  void tie(const std::string& alias, const std::string& owner);
  // Where the tensor is not read: names it, and is true.
  bool leave_unread(const PickleGraph& graph, PickleId tensor, const std::string& name,
                    const std::string& state);

  ZeroCheckpoint& checkpoint_;
  Partitions& partitions_;
  std::int64_t stage_;
  std::uint32_t world_;
  ModelFacts facts_;
  std::set<std::string, std::less<>> unread_;  // names of tensors
  std::set<std::string, std::less<>> buffers_;
};

}  // namespace ebb::formats::deepspeed
