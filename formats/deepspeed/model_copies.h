// Which parameters lie in buffers of masters that nothing names: rounded, they are the model's own
// copies. Internal to formats/deepspeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/partition.h"

namespace ebb::formats::deepspeed {

// How masters are kept: each by itself, or those of a group end to end.
enum class Masters : std::uint8_t { whole, flattened };

class ModelCopies {
 public:
  // Reads the first elements of the catalog's parameters. Borrows both.
  static Result<ModelCopies> open(const Catalog& catalog, const SourceTree& tree);

  // The parameters whose masters these are; of several alike the first that was not given yet.
  // nullopt: the elements are not the model's.
  Result<std::optional<Group>> take(const Flat& masters, Masters kept);

  // Copies that were alike: the order of the model alone tells which is which.
  bool took_by_order() const { return by_order_; }

 private:
  struct Kind {  // parameters that look alike from afar
    DType dtype = DType::f32;
    Shape shape;
  };
  struct Copy {
    Param param;
    bool given = false;
  };

  ModelCopies(const Catalog& catalog, const SourceTree& tree) : catalog_(catalog), tree_(tree) {}
  Result<> read(std::uint32_t file, std::uint64_t at, std::span<std::byte> into) const;
  Result<> add(const TensorEntry& param);
  Result<std::optional<Param>> next(const Flat& masters, std::uint64_t first, Masters kept);
  std::vector<std::size_t> alike(const Kind& kind, const Flat& masters, ByteView elements) const;

  const Catalog& catalog_;
  const SourceTree& tree_;
  std::vector<Copy> copies_;  // in the model's order
  std::vector<Kind> kinds_;
  std::map<std::string, std::vector<std::size_t>> by_look_;  // copies, by kind and first elements
  bool by_order_ = false;
};

}  // namespace ebb::formats::deepspeed
