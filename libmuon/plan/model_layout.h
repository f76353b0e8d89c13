// ModelLayout: which rank holds which elements of a model's parameters, where classes of them are
// cut in their own ways on their own ranks. What Layout is to a list of tensors, by parameter: one
// is one tensor of a layout, or several that are slices of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/libmuon/plan/param_classes.h"
#include "ebb/libmuon/plan/slice.h"

namespace ebb::libmuon {

class ModelLayout {
 public:
  // Of one side of the classes. Fails as Layout::make does.
  static Result<ModelLayout> make(std::span<const ParamClass> classes,
                                  Layout::Spec ParamClass::* side);
  // Of each parameter what the second says, where `second` is set, else what the first does. Both
  // are of the same parameters, in fp32.
  static ModelLayout either(const ModelLayout& one, const ModelLayout& other,
                            const std::vector<bool>& second);
  // Every tensor is a parameter.
  explicit ModelLayout(Layout layout);
  // Every tensor is a run of one. REQUIRES: `runs` are all of `params` parameters, ascending.
  ModelLayout(Layout layout, std::span<const Transit> runs, std::size_t params);

  // A tensor of a layout as a slice of a parameter. Ranges are of the tensor.
  struct Part {
    const Layout& layout;
    std::uint32_t number = 0;  // of the layout
    std::size_t tensor = 0;
    Slice slice;
    const formats::Mesh& mesh() const { return layout.spec().mesh; }
    bool replicated() const { return layout.spec().policy == Policy::replicated; }
    FlatRange held(Rank rank) const { return layout.held(tensor, rank); }
    FlatRange held_by(std::uint32_t shard) const { return layout.held_by(tensor, shard); }
    std::uint64_t largest() const { return layout.largest_part(tensor); }
    // REQUIRES: as Layout::shards_of.
    Layout::ShardSpan shards_of(FlatRange range) const { return layout.shards_of(tensor, range); }
  };
  std::size_t parts(std::uint32_t param) const {
    return first_place(param + 1) - first_place(param);
  }
  Part part(std::uint32_t param, std::size_t index) const {
    return part_at(first_place(param) + index);
  }
  // Of a parameter that is cut nowhere. REQUIRES: it is.
  Part of(std::uint32_t param) const;
  // The one that has the range's first element. REQUIRES: parts are runs.
  Part run_of(const Transit& transit) const;
  // Those that have some of the range, in the order of their first elements.
  template <typename Take>
  void for_parts(const Transit& transit, const Take& take) const;
  // The one that has the rank in its mesh, if one has: in a trainer's layout none else does.
  std::optional<Part> part_with(std::uint32_t param, Rank rank) const;

  // Of the parameter. REQUIRES: it is cut nowhere.
  FlatRange held(std::uint32_t param, Rank rank) const { return of(param).held(rank); }
  // What of the parameter the rank holds, ascending: in a trainer's layout its buffer holds these
  // one behind the other.
  std::vector<FlatRange> runs(std::uint32_t param, Rank rank) const;
  // What of a range it holds.
  std::vector<FlatRange> runs(const Transit& transit, Rank rank) const;
  // Whether the rank holds all of a range. Of a trainer's layout, as the next.
  bool holds(const Transit& transit, Rank rank) const;
  // Where in the rank's buffer an element lies. REQUIRES: it holds that.
  std::uint64_t place(std::uint32_t param, Rank rank, std::uint64_t element) const;
  std::uint64_t local_elems(std::uint32_t param, Rank rank) const;
  // How many ranks have a place for it. Of a trainer's layout.
  std::uint32_t ranks(std::uint32_t param) const;
  // Of the whole parameter.
  std::uint64_t elems(std::uint32_t param) const;

  // What the buffers of a mesh' shards hold beyond the parameters, over these.
  double padding_ratio() const;

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
  std::size_t layouts() const { return layouts_.size(); }
  const Layout& layout(std::size_t number) const { return *layouts_[number]; }
  // By layout: whose class it is. Layouts of one partition have no rank in common.
  std::uint32_t partition_of(std::uint32_t layout) const { return partitions_[layout]; }

 private:
  ModelLayout() = default;
  struct Place {
    std::uint32_t layout = 0;
    std::uint32_t tensor = 0;
  };
  std::size_t first_place(std::size_t param) const {
    return first_places_.empty() ? param : first_places_[param];
  }
  void place_params(std::span<const ParamClass> classes);
  void place_slices(std::span<const ParamClass> classes);
  Part part_at(std::size_t place) const;
  Slice slice_at(std::size_t place) const;

  void add(Layout layout, std::uint32_t partition);

  std::vector<std::shared_ptr<const Layout>> layouts_;  // copies share them
  std::vector<std::uint32_t> partitions_;               // by layout
  std::vector<Place> places_;                           // parameter by parameter
  std::vector<std::uint32_t> first_places_;  // by parameter, + end; none where none is cut
  std::vector<Slice> slices_;                // as `places_`; none where none is cut
  std::vector<DType> dtypes_;                // by parameter, or none
  bool in_parts_ = false;
};

template <typename Take>
void ModelLayout::for_parts(const Transit& transit, const Take& take) const {
  const auto [param, range] = transit;
  if (range.count == 0) return;
  const std::size_t end = first_place(param + 1);
  std::size_t at = first_place(param);
  if (end - at > 1 && part_at(at).slice.is_run()) {
    // Runs lie one behind the other.
    for (std::size_t behind = end; behind - at > 1;) {
      const std::size_t middle = at + (behind - at) / 2;
      (part_at(middle).slice.first <= range.first ? at : behind) = middle;
    }
  }
  for (; at < end; ++at) {
    const Part part = part_at(at);
    if (part.slice.first >= range.first + range.count) break;
    if (part.slice.local(range).count > 0) take(part);
  }
}

// Whether they have elements in common. REQUIRES: one is a run, or both are cut alike.
inline bool meet(const Slice& a, const Slice& b) {
  if (a.is_run()) return b.local({a.first, a.elems}).count > 0;
  if (b.is_run()) return a.local({b.first, b.elems}).count > 0;
  return a == b;
}

// Runs of the parameter that are in a range of both parts, each of its own tensor. REQUIRES: a part
// is a run, or they are the same slice.
template <typename Take>
void for_common_runs(const ModelLayout::Part& a, FlatRange of_a, const ModelLayout::Part& b,
                     FlatRange of_b, const Take& take) {
  if (a.slice.is_run() && !b.slice.is_run()) return for_common_runs(b, of_b, a, of_a, take);
  if (of_a.count == 0 || of_b.count == 0) return;
  const FlatRange near = formats::overlap(a.slice.local(b.slice.bounds(of_b)), of_a);
  a.slice.for_runs(near, [&](FlatRange run) {
    const FlatRange common = formats::overlap(b.slice.local(run), of_b);
    if (common.count > 0) b.slice.for_runs(common, take);
  });
}

}  // namespace ebb::libmuon
