// DTensors and ShardedTensors as torch 2.13 pickles them, right or with whatever a test changes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

using Numbers = std::vector<std::uint64_t>;

struct PickledPlacement {
  std::string name = "Shard";
  std::int64_t dim = 0;
  std::int64_t split = 1;
};

struct PickledDTensor {
  Shape shape;  // of the whole
  Shape local;  // of the rank's part
  std::uint64_t rank = 0;
  Numbers mesh = {2};
  Numbers ranks = {0, 1};
  Numbers coordinate = {0};
  std::vector<PickledPlacement> placements = {PickledPlacement{}};
  bool in_mesh = true;  // the rank that writes it
};

inline void pickle_mesh(formats::PickleWriter& pickle, const PickledDTensor& what) {
  const std::string layouts = "torch.distributed._mesh_layout";
  pickle.object("torch.distributed.device_mesh", "DeviceMesh", [&] {
    pickle.entry("_layout", [&] {
      pickle.object(layouts, "_MeshLayout", [&] {
        pickle.entry("axes", [&] {
          pickle.tuple([&] {
            std::uint64_t stride = 1;
            for (const std::uint64_t ranks : what.mesh) stride *= ranks;
            for (const std::uint64_t ranks : what.mesh) {
              stride = ranks == 0 ? stride : stride / ranks;
              pickle.object(layouts, "_FlatLayout", [&] {
                pickle.entry("shape", [&] { pickle.int_tuple(Numbers{ranks}); });
                pickle.entry("stride", [&] { pickle.int_tuple(Numbers{stride}); });
              });
            }
          });
        });
      });
    });
    pickle.entry("_flatten_rank_map", [&] { pickle.int_tuple(what.ranks); });
    pickle.entry("_rank", what.rank);
    pickle.string("_coordinate_on_dim");
    if (what.in_mesh)
      pickle.int_tuple(what.coordinate);
    else
      pickle.none();
  });
}

inline void pickle_dtensor(formats::PickleWriter& pickle, std::string_view storage,
                           const PickledDTensor& what) {
  const std::string places = "torch.distributed.tensor.placement_types";
  wrapper_subclass(pickle, "torch.distributed.tensor", "DTensor", what.shape, [&] {
    pickle.dict([&] {
      pickle.string("_local_tensor");
      plain_tensor(pickle, storage, what.local);
      pickle.string("_spec");
      pickle.object("torch.distributed.tensor._dtensor_spec", "DTensorSpec", [&] {
        pickle.entry("mesh", [&] { pickle_mesh(pickle, what); });
        pickle.entry("placements", [&] {
          pickle.tuple([&] {
            for (const PickledPlacement& placement : what.placements)
              pickle.object(places, placement.name, [&] {
                pickle.entry("dim", placement.dim);
                pickle.entry("split_factor", placement.split);
              });
          });
        });
      });
    });
  });
}

// A box of a ShardedTensor, and whose it is.
struct PickledShard {
  Shape offset;
  Shape sizes;
  std::uint64_t rank = 0;
};

inline void pickle_shard_metadata(formats::PickleWriter& pickle, const PickledShard& shard) {
  pickle.object("torch.distributed._shard.metadata", "ShardMetadata", [&] {
    pickle.entry("shard_offsets", [&] { pickle.int_tuple(shard.offset); });
    pickle.entry("shard_sizes", [&] { pickle.int_tuple(shard.sizes); });
    pickle.entry("placement", [&] {
      pickle.object("torch.distributed.remote_device", "_remote_device",
                    [&] { pickle.entry("_rank", shard.rank); });
    });
  });
}

// `mine`: the shard of these that lies in `storage`.
inline void pickle_sharded_tensor(formats::PickleWriter& pickle, std::string_view storage,
                                  const Shape& shape, const std::vector<PickledShard>& shards,
                                  const PickledShard& mine) {
  const std::string package = "torch.distributed._shard.sharded_tensor";
  wrapper_subclass(pickle, package + ".api", "ShardedTensor", shape, [&] {
    pickle.tuple([&] {
      pickle.list([&] {
        pickle.object(package + ".shard", "Shard", [&] {
          pickle.string("tensor");
          plain_tensor(pickle, storage, mine.sizes);
          pickle.entry("metadata", [&] { pickle_shard_metadata(pickle, mine); });
        });
      });
      pickle.object(package + ".metadata", "ShardedTensorMetadata", [&] {
        pickle.list("shards_metadata", [&] {
          for (const PickledShard& shard : shards) pickle_shard_metadata(pickle, shard);
        });
      });
      pickle.object(package + ".api", "State", [&] { pickle.entry("global_rank", mine.rank); });
    });
  });
}

// A file of one dict: keys and values are what `fill` writes. Storages "0" to "3" are full of
// `content`, 256 bytes each.
inline ByteVector rank_file(const std::function<void(formats::PickleWriter&)>& fill,
                            char content = 'a') {
  formats::PickleWriter pickle;
  pickle.dict([&] { fill(pickle); });
  const std::string elements(256, content);
  return archive_of({{"x/data.pkl", std::string(formats::text_of(pickle.finish()))},
                     {"x/byteorder", "little"},
                     {"x/data/0", elements},
                     {"x/data/1", elements},
                     {"x/data/2", elements},
                     {"x/data/3", elements},
                     {"x/version", "3\n"}});
}

}  // namespace ebb::test_support
