#include "ebb/libmuon/plan/model_layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ebb/formats/core/check.h"

namespace ebb::libmuon {

Result<ModelLayout> ModelLayout::make(std::span<const ParamClass> classes,
                                      Layout::Spec ParamClass::* side) {
  ModelLayout all;
  for (const ParamClass& one : classes) {
    auto layout = Layout::sharing(one.*side, one.shapes);
    if (!layout) {
      Error error = std::move(layout).error();
      if (!one.name.empty()) error.message = one.name + ": " + error.message;
      return error;
    }
    all.add(*std::move(layout), one.partition);
  }
  if (std::ranges::all_of(classes, &std::vector<Slice>::empty, &ParamClass::slices))
    all.place_params(classes);
  else
    all.place_slices(classes);
  return all;
}

void ModelLayout::add(Layout layout, std::uint32_t partition) {
  layouts_.push_back(std::make_shared<const Layout>(std::move(layout)));
  partitions_.push_back(partition);
}

void ModelLayout::place_params(std::span<const ParamClass> classes) {
  std::size_t params = 0;
  for (const ParamClass& one : classes) params += one.params.size();
  places_.resize(params);
  for (std::uint32_t number = 0; number < classes.size(); ++number)
    for (std::uint32_t tensor = 0; tensor < classes[number].params.size(); ++tensor)
      places_[classes[number].params[tensor]] = {number, tensor};
}

// Those of a parameter one behind the other, in the order of their first elements.
void ModelLayout::place_slices(std::span<const ParamClass> classes) {
  struct Placed {
    std::uint32_t param = 0;
    Place place;
    Slice slice;
    auto key() const { return std::pair(param, slice.first); }
  };
  std::vector<Placed> all;
  for (std::uint32_t number = 0; number < classes.size(); ++number)
    for (std::uint32_t tensor = 0; tensor < classes[number].params.size(); ++tensor) {
      const ParamClass& one = classes[number];
      all.push_back({one.params[tensor],
                     {number, tensor},
                     one.slices.empty() ? Slice::run({0, layout(number).elems(tensor)})
                                        : one.slices[tensor]});
    }
  std::ranges::sort(all, {}, &Placed::key);
  for (const Placed& one : all) {
    while (first_places_.size() <= one.param)
      first_places_.push_back(static_cast<std::uint32_t>(places_.size()));
    places_.push_back(one.place);
    slices_.push_back(one.slice);
  }
  first_places_.push_back(static_cast<std::uint32_t>(places_.size()));
}

ModelLayout::ModelLayout(Layout layout) : places_(layout.tensors().size()) {
  for (std::uint32_t param = 0; param < places_.size(); ++param) places_[param].tensor = param;
  add(std::move(layout), 0);
}

ModelLayout::ModelLayout(Layout layout, std::span<const Transit> runs, std::size_t params)
    : ModelLayout(std::move(layout)) {
  if (runs.size() == params) return;
  first_places_.resize(params + 1);
  for (const Transit& run : runs) {
    ++first_places_[run.param + 1];
    slices_.push_back(Slice::run(run.range));
  }
  std::partial_sum(first_places_.begin(), first_places_.end(), first_places_.begin());
}

ModelLayout ModelLayout::either(const ModelLayout& one, const ModelLayout& other,
                                const std::vector<bool>& second) {
  ModelLayout all;
  all.layouts_ = one.layouts_;
  all.layouts_.insert(all.layouts_.end(), other.layouts_.begin(), other.layouts_.end());
  all.partitions_ = one.partitions_;
  const std::uint32_t apart = std::ranges::max(one.partitions_) + 1;
  for (const std::uint32_t partition : other.partitions_)
    all.partitions_.push_back(apart + partition);
  const bool cut = !one.slices_.empty() || !other.slices_.empty();
  for (std::uint32_t param = 0; param < second.size(); ++param) {
    const ModelLayout& from = second[param] ? other : one;
    if (cut) all.first_places_.push_back(static_cast<std::uint32_t>(all.places_.size()));
    for (std::size_t at = from.first_place(param); at < from.first_place(param + 1); ++at) {
      Place place = from.places_[at];
      if (second[param]) place.layout += static_cast<std::uint32_t>(one.layouts_.size());
      all.places_.push_back(place);
      if (cut) all.slices_.push_back(from.slice_at(at));
    }
  }
  if (cut) all.first_places_.push_back(static_cast<std::uint32_t>(all.places_.size()));
  return all;
}

Slice ModelLayout::slice_at(std::size_t number) const {
  const Place& place = places_[number];
  return slices_.empty() ? Slice::run({0, layout(place.layout).elems(place.tensor)})
                         : slices_[number];
}

ModelLayout::Part ModelLayout::part_at(std::size_t number) const {
  const Place& place = places_[number];
  return {layout(place.layout), place.layout, place.tensor, slice_at(number)};
}

ModelLayout::Part ModelLayout::of(std::uint32_t param) const {
  EBB_CHECK(parts(param) == 1);
  return part(param, 0);
}

ModelLayout::Part ModelLayout::run_of(const Transit& transit) const {
  std::optional<Part> found;
  for_parts({transit.param, {transit.range.first, 1}}, [&](const Part& part) {
    EBB_CHECK(part.slice.is_run());
    found.emplace(part);
  });
  EBB_CHECK(found.has_value());
  return *found;
}

std::optional<ModelLayout::Part> ModelLayout::part_with(std::uint32_t param, Rank rank) const {
  for (std::size_t i = 0; i < parts(param); ++i)
    if (const Part one = part(param, i); one.mesh().place_of(rank)) return one;
  return std::nullopt;
}

std::vector<FlatRange> ModelLayout::runs(std::uint32_t param, Rank rank) const {
  return runs({param, {0, elems(param)}}, rank);
}

std::vector<FlatRange> ModelLayout::runs(const Transit& transit, Rank rank) const {
  std::vector<FlatRange> runs;
  for_parts(transit, [&](const Part& part) {
    const FlatRange some = formats::overlap(part.slice.local(transit.range), part.held(rank));
    part.slice.for_runs(some, [&](FlatRange run) { runs.push_back(run); });
  });
  return runs;
}

bool ModelLayout::holds(const Transit& transit, Rank rank) const {
  const auto part = part_with(transit.param, rank);
  if (!part) return transit.range.count == 0;
  const FlatRange wanted = part->slice.local(transit.range);
  return wanted.count == transit.range.count &&
         formats::overlap(part->held(rank), wanted).count == wanted.count;
}

std::uint64_t ModelLayout::place(std::uint32_t param, Rank rank, std::uint64_t element) const {
  const auto part = part_with(param, rank);
  EBB_CHECK(part.has_value());
  return part->slice.before(element) - part->held(rank).first;
}

std::uint64_t ModelLayout::local_elems(std::uint32_t param, Rank rank) const {
  std::uint64_t elems = 0;
  for (std::size_t i = 0; i < parts(param); ++i) elems += part(param, i).held(rank).count;
  return elems;
}

double ModelLayout::padding_ratio() const {
  double elems = 0, buffers = 0;
  for (const std::shared_ptr<const Layout>& shared : layouts_) {
    const Layout& layout = *shared;
    std::uint64_t all = 0;
    for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor)
      all += layout.elems(tensor);
    elems += static_cast<double>(all);
    const Policy policy = layout.spec().policy;
    const bool padded = policy == Policy::zero12 || policy == Policy::zero12_boundary ||
                        policy == Policy::zero3 || policy == Policy::rows;
    const formats::Mesh& mesh = layout.spec().mesh;
    buffers += static_cast<double>(
        padded ? layout.buffer_elems(mesh.rank_of({0, 0})) * mesh.shard_world : all);
  }
  return elems > 0 ? buffers / elems - 1 : 0;
}

std::uint32_t ModelLayout::ranks(std::uint32_t param) const {
  std::uint32_t ranks = 0;
  for (std::size_t i = 0; i < parts(param); ++i) ranks += part(param, i).mesh().ranks();
  return ranks;
}

std::uint64_t ModelLayout::elems(std::uint32_t param) const {
  std::uint64_t elems = 0;
  for (std::size_t i = 0; i < parts(param); ++i) elems += part(param, i).slice.elems;
  return elems;
}

}  // namespace ebb::libmuon
