#include "ebb/formats/torch_checkpointing/rank_writer.h"

#include <algorithm>
#include <numeric>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats::torch_checkpointing {
namespace {

// A job's mesh, as it is compared with that of a job that loads: FSDP2's own has no names.
constexpr std::string_view kDevice = "cuda";

Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(shape[i], 1);
  return strides;
}

}  // namespace

RankWriter::RankWriter(const EmitRequest& request)
    : content_(request.content), layout_(request.layout) {
  const Mesh& mesh = layout_.spec().mesh;
  if (mesh.replicas > 1) mesh_.push_back(mesh.replicas);
  mesh_.push_back(mesh.shard_world);
  ranks_.resize(mesh.ranks());
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

Shape RankWriter::place_of(std::uint32_t rank) const {
  if (mesh_.size() == 1) return {rank};
  return {rank / mesh_[1], rank % mesh_[1]};
}

void RankWriter::part(TorchFileWriter& file, std::uint32_t number, std::uint32_t rank) const {
  const TensorEntry& tensor = content_.tensors[number];
  Box box{Shape(tensor.shape.size()), tensor.shape};
  box.extent[0] = 0;
  for (Piece& piece : layout_.pieces(number, Rank{rank})) box = std::move(piece.box);
  const std::uint32_t storage = file.add_storage(tensor.dtype, {TensorData{number, box}});
  file.call("torch._tensor", "_rebuild_from_type_v2", [&] {
    file.global("torch._utils", "_rebuild_wrapper_subclass");
    file.global("torch.distributed.tensor", "DTensor");
    file.tuple([&] {
      file.global("torch.distributed.tensor", "DTensor");
      file.global("torch", torch_name_of(tensor.dtype));
      file.int_tuple(tensor.shape);
      file.int_tuple(dense_strides(tensor.shape));
      file.integer(0);  // where it begins in its storage
      file.shared("layout", [&] {
        file.call1("torch.serialization", "_get_layout", [&] { file.string("torch.strided"); });
      });
      file.shared("device", [&] { file.call1("torch", "device", [&] { file.string("cpu"); }); });
      file.boolean(0);  // requires_grad
    });
    file.dict([&] {
      file.entry("_local_tensor", [&] { file.tensor(storage, 0, box.extent); });
      file.entry("_spec", [&] { spec(file, tensor, rank); });
    });
  });
}

void RankWriter::spec(TorchFileWriter& file, const TensorEntry& tensor, std::uint32_t rank) const {
  constexpr std::string_view kModule = "torch.distributed.tensor._dtensor_spec";
  file.object(kModule, "DTensorSpec", [&] {
    file.entry("mesh", [&] { file.shared("mesh", [&] { mesh(file, rank); }); });
    file.entry("placements", [&] { file.shared("placements", [&] { placements(file); }); });
    file.entry("tensor_meta", [&] {
      file.call(kModule, "TensorMeta", [&] {
        file.torch_size(tensor.shape);
        file.int_tuple(dense_strides(tensor.shape));
        file.global("torch", torch_name_of(tensor.dtype));
      });
    });
  });
}

// As torch had it before 2.9: its own classes for a mesh's layout change with each release, and a
// loader takes the parts alone.
void RankWriter::mesh(TorchFileWriter& file, std::uint32_t rank) const {
  ByteVector numbers;
  for (const std::uint64_t each : ranks_) append_le(numbers, each);
  file.object("torch.distributed.device_mesh", "DeviceMesh", [&] {
    file.entry("_device_type", kDevice);
    file.entry("mesh",
               [&] { file.tensor(file.add_storage(DType::i64, {std::move(numbers)}), 0, mesh_); });
    file.entry("_mesh_dim_names", nullptr);
    file.entry("_rank", rank);
    file.entry("_coordinate_on_dim", [&] { file.int_tuple(place_of(rank)); });
  });
}

void RankWriter::placements(TorchFileWriter& file) const {
  constexpr std::string_view kModule = "torch.distributed.tensor.placement_types";
  file.tuple([&] {
    if (mesh_.size() > 1) file.object(kModule, "Replicate");
    file.object(kModule, "Shard", [&] { file.entry("dim", 0); });
  });
}

void RankWriter::files(PickleWriter& pickle) const {
  pickle.dict([&] {
    for (const std::uint64_t rank : ranks_) {
      pickle.integer(static_cast<std::int64_t>(rank));
      pickle.none();
    }
  });
}

void RankWriter::metadata_of(PickleWriter& pickle, std::uint32_t number, Held held) const {
  const TensorEntry& stored = content_.tensors[number];
  const TensorEntry tensor = stored.part_of == nullptr ? stored : whole_of(stored);
  const auto integers = [&](std::span<const std::uint64_t> values) {
    for (const std::uint64_t value : values) pickle.integer(static_cast<std::int64_t>(value));
  };
  pickle.list([&] {
    pickle.dict([&] {
      pickle.dict("sharding_metadata", [&] {
        pickle.entry("type", "DTensorShardingMetadata");
        pickle.dict("data", [&] {
          pickle.list("global_shape", [&] { integers(tensor.shape); });
          pickle.entry("dtype", compose("torch.{}", torch_name_of(tensor.dtype)));
          pickle.list("stride", [&] { integers(dense_strides(tensor.shape)); });
          pickle.entry("mesh_spec", [&] { mesh_spec(pickle, held); });
          pickle.list("placements", [&] { placement_specs(pickle, held); });
        });
      });
      pickle.entry("ranks", [&] { pickle.shared("ranks", [&] { pickle.int_tuple(ranks_); }); });
    });
  });
}

// Of a tensor that is whole at every rank: all of them in a row.
void RankWriter::mesh_spec(PickleWriter& pickle, Held held) const {
  const std::string_view device = held == Held::whole_on_cpu ? "cpu" : kDevice;
  const Shape mesh = held == Held::in_rows ? mesh_ : Shape{ranks_.size()};
  pickle.shared(compose("mesh {} of {}", device, mesh.size()), [&] {
    pickle.dict([&] {
      pickle.entry("device_type", device);
      pickle.entry("mesh_shape", [&] { pickle.int_tuple(mesh); });
      pickle.entry("mesh_data", [&] { pickle.shared("ranks", [&] { pickle.int_tuple(ranks_); }); });
      pickle.entry("mesh_dim_names", nullptr);
    });
  });
}

void RankWriter::placement_specs(PickleWriter& pickle, Held held) const {
  if (held != Held::in_rows || mesh_.size() > 1)
    pickle.dict([&] { pickle.entry("type", "Replicate"); });
  if (held != Held::in_rows) return;
  pickle.dict([&] {
    pickle.entry("type", "Shard");
    pickle.entry("dim", 0);
  });
}

}  // namespace ebb::formats::torch_checkpointing
