// How a tensor that is cut over ranks is written: as torch's DTensor in a rank's file, and in
// metadata.pkl. Internal to formats/torch_checkpointing.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/torch/file_writer.h"

namespace ebb::formats::torch_checkpointing {

// How a job that loads it has a tensor.
enum class Held : std::uint8_t { in_rows, whole_on_device, whole_on_cpu };

class RankWriter {
 public:
  // The layout is borrowed. REQUIRES: its mesh is all of its world.
  explicit RankWriter(const EmitRequest& request);

  std::uint32_t world() const { return static_cast<std::uint32_t>(ranks_.size()); }
  // What `rank` has of a tensor that is cut.
  void part(TorchFileWriter& file, std::uint32_t number, std::uint32_t rank) const;
  void metadata_of(PickleWriter& pickle, std::uint32_t number, Held held) const;
  // The usual names of all ranks' files.
  void files(PickleWriter& pickle) const;

 private:
  void spec(TorchFileWriter& file, const TensorEntry& tensor, std::uint32_t rank) const;
  void mesh(TorchFileWriter& file, std::uint32_t rank) const;
  void placements(TorchFileWriter& file) const;
  void mesh_spec(PickleWriter& pickle, Held held) const;
  void placement_specs(PickleWriter& pickle, Held held) const;
  Shape place_of(std::uint32_t rank) const;

  const Catalog& content_;
  const Layout& layout_;
  Shape mesh_;  // {shards}, or {copies, shards}: rank r and rank r + shards hold the same
  std::vector<std::uint64_t> ranks_;
};

}  // namespace ebb::formats::torch_checkpointing
