// ModelLayout: which rank holds which elements of a model's parameters, where classes of them are
// cut in their own ways on their own ranks. What Layout is to a list of tensors, by parameter.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/libmuon/plan/param_classes.h"

namespace ebb::libmuon {

class ModelLayout {
 public:
  // Of one side of the classes. Fails as Layout::make does.
  static Result<ModelLayout> make(std::span<const ParamClass> classes,
                                  Layout::Spec ParamClass::* side);
  // Every tensor is a parameter.
  explicit ModelLayout(Layout layout);

  // The layout that has the parameter, as which of its tensors.
  struct Part {
    const Layout& layout;
    std::size_t tensor = 0;
    const formats::Mesh& mesh() const { return layout.spec().mesh; }
    bool replicated() const { return layout.spec().policy == Policy::replicated; }
    FlatRange held(Rank rank) const { return layout.held(tensor, rank); }
    FlatRange held_by(std::uint32_t shard) const { return layout.held_by(tensor, shard); }
    std::uint64_t largest() const { return layout.largest_part(tensor); }
    // REQUIRES: as Layout::shards_of.
    Layout::ShardSpan shards_of(FlatRange range) const { return layout.shards_of(tensor, range); }
  };
  Part of(std::uint32_t param) const {
    return {layouts_[places_[param].layout], places_[param].tensor};
  }

  FlatRange held(std::uint32_t param, Rank rank) const { return of(param).held(rank); }
  std::uint64_t local_elems(std::uint32_t param, Rank rank) const {
    return held(param, rank).count;
  }
  // Of the whole parameter.
  std::uint64_t elems(std::uint32_t param) const {
    return formats::volume(layouts_[places_[param].layout].tensors()[places_[param].tensor]);
  }

  // What the elements are kept as where this layout has them; fp32 where nothing was set.
  DType dtype(std::uint32_t param) const { return dtypes_.empty() ? DType::f32 : dtypes_[param]; }
  // As the step stages them: sums of parts in fp32.
  DType staged_dtype(std::uint32_t param) const { return in_parts_ ? DType::f32 : dtype(param); }
  // Whether ranks that hold the same elements have parts of a sum (HandIn::partial), not copies.
  bool in_parts() const { return in_parts_; }
  void set_in_parts() { in_parts_ = true; }
  // One a parameter.
  void set_dtypes(std::vector<DType> dtypes) { dtypes_ = std::move(dtypes); }

  // One a class, in their order.
  const std::vector<Layout>& layouts() const { return layouts_; }
  std::uint32_t layout_of(std::uint32_t param) const { return places_[param].layout; }
  // By layout: whose class it is. Layouts of one partition have no rank in common.
  std::uint32_t partition_of(std::uint32_t layout) const { return partitions_[layout]; }

 private:
  ModelLayout() = default;
  struct Place {
    std::uint32_t layout = 0;
    std::uint32_t tensor = 0;
  };

  std::vector<Layout> layouts_;
  std::vector<std::uint32_t> partitions_;  // by layout
  std::vector<Place> places_;              // by parameter
  std::vector<DType> dtypes_;              // by parameter, or none
  bool in_parts_ = false;
};

}  // namespace ebb::libmuon
