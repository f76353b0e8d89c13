#include "ebb/formats/layout/layout.h"

#include <algorithm>
#include <array>
#include <string>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMaxElems = std::uint64_t{1} << 60;
constexpr std::uint64_t kMaxAlign = std::uint64_t{1} << 30;

struct NamedPolicy {
  Policy policy;
  std::string_view name;
};
constexpr std::array kPolicies = {
    NamedPolicy{Policy::replicated, "replicated"},
    NamedPolicy{Policy::zero12, "zero12"},
    NamedPolicy{Policy::zero12_boundary, "zero12-boundary"},
    NamedPolicy{Policy::zero3, "zero3"},
    NamedPolicy{Policy::rows, "rows"},
    NamedPolicy{Policy::layer_wise, "layer-wise"},
    NamedPolicy{Policy::uneven_rows, "uneven-rows"},
};

Error layout_error(std::string message) { return {Code::layout, std::move(message)}; }

Result<> check_spec(const Layout::Spec& spec) {
  if (std::ranges::find(kPolicies, spec.policy, &NamedPolicy::policy) == kPolicies.end())
    return layout_error(
        compose("there is no partition policy {}", static_cast<unsigned>(spec.policy)));
  EBB_TRY(check(spec.mesh));
  if (spec.split == 0 || spec.mesh.shard_world % spec.split != 0)
    return layout_error(
        compose("{} shards are not so many, each split in {}", spec.mesh.shard_world, spec.split));
  if (spec.align_elems == 0 || spec.align_elems > kMaxAlign)
    return layout_error(
        compose("partitions aligned to {} elements: must be 1 to {}", spec.align_elems, kMaxAlign));
  return {};
}

Result<> check_tensors(const std::vector<Shape>& tensors) {
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto elems = checked_volume(tensors[t]);
    if (!elems || *elems > kMaxElems - total)
      return layout_error(
          compose("tensor {} of shape {}: with it there are more than 2^60 elements", t,
                  to_string(tensors[t])));
    total += *elems;
  }
  return {};
}

Result<> check_owners(const Layout::Spec& spec, std::size_t tensors) {
  const std::size_t wanted = spec.policy == Policy::layer_wise ? tensors : 0;
  if (spec.owners.size() != wanted)
    return layout_error(compose("{}: {} owners given, {} wanted", name_of(spec.policy),
                                spec.owners.size(), wanted));
  for (std::size_t t = 0; t < tensors && t < spec.owners.size(); ++t)
    if (const std::uint32_t shards = spec.mesh.shard_world / spec.split; spec.owners[t] >= shards)
      return layout_error(compose("tensor {}: owner {} of {} shards", t, spec.owners[t], shards));
  return {};
}

// A scalar is one row.
std::uint64_t rows_of(const Shape& shape) { return shape.empty() ? 1 : shape[0]; }

Result<> check_rows(const Layout::Spec& spec, const std::vector<Shape>& tensors) {
  const std::size_t wanted = spec.policy == Policy::uneven_rows ? tensors.size() : 0;
  if (spec.rows.size() != wanted)
    return layout_error(compose("{}: rows of {} tensors given, {} wanted", name_of(spec.policy),
                                spec.rows.size(), wanted));
  const std::uint32_t shards = spec.mesh.shard_world / spec.split;
  for (std::size_t t = 0; t < wanted; ++t) {
    if (spec.rows[t].size() != shards)
      return layout_error(
          compose("tensor {}: rows of {} shards given, {} wanted", t, spec.rows[t].size(), shards));
    std::uint64_t rows = 0;
    bool fits = true;
    for (const std::uint64_t some : spec.rows[t]) {
      fits = fits && some <= rows_of(tensors[t]) - rows;
      if (fits) rows += some;
    }
    if (!fits || rows != rows_of(tensors[t]))
      return layout_error(compose("tensor {} of shape {}: its shards have {} rows of {}", t,
                                  to_string(tensors[t]), fits ? std::to_string(rows) : "more",
                                  rows_of(tensors[t])));
  }
  return {};
}

// Splits runs of tensors greedily so that none exceeds `capacity`: the first tensor of each run.
std::vector<std::uint64_t> runs_within(const std::vector<std::uint64_t>& first,
                                       std::uint64_t capacity) {
  std::vector<std::uint64_t> starts = {0};
  for (std::size_t t = 0; t + 1 < first.size(); ++t)
    if (first[t + 1] - first[starts.back()] > capacity) starts.push_back(t);
  return starts;
}

}  // namespace

std::string_view name_of(Policy policy) {
  for (const NamedPolicy& row : kPolicies)
    if (row.policy == policy) return row.name;
  return "no policy";  // what a caller made of a number: Layout::make() refuses it
}

std::optional<Policy> policy_named(std::string_view name) {
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  for (const NamedPolicy& row : kPolicies)
    if (row.name == dashed) return row.policy;
  return std::nullopt;
}

Result<Layout> Layout::make(Spec spec, std::vector<Shape> tensors) {
  return sharing(std::move(spec), std::make_shared<const std::vector<Shape>>(std::move(tensors)));
}

Result<Layout> Layout::sharing(Spec spec, std::shared_ptr<const std::vector<Shape>> tensors) {
  EBB_TRY(check_spec(spec));
  EBB_TRY(check_tensors(*tensors));
  EBB_TRY(check_owners(spec, tensors->size()));
  EBB_TRY(check_rows(spec, *tensors));
  Layout layout;
  layout.spec_ = std::move(spec);
  layout.tensors_ = std::move(tensors);
  layout.elems_.reserve(layout.tensors().size());
  for (const Shape& shape : layout.tensors()) layout.elems_.push_back(volume(shape));
  layout.first_.reserve(layout.elems_.size() + 1);
  switch (layout.spec_.policy) {
    case Policy::zero12:
      layout.lay_flat();
      break;
    case Policy::zero12_boundary:
      layout.lay_boundary();
      break;
    case Policy::uneven_rows:
      layout.lay_uneven();
      break;
    default:
      layout.lay_parts();
  }
  return layout;
}

void Layout::lay_parts() {
  if (spec_.policy == Policy::layer_wise) {
    shard_elems_.assign(shards(), 0);
    for (std::size_t t = 0; t < elems_.size(); ++t) {
      std::uint64_t& used = shard_elems_[spec_.owners[t]];
      first_.push_back(used);
      used += elems(t);
    }
    return;
  }
  first_.push_back(0);
  for (std::size_t t = 0; t < elems_.size(); ++t) first_.push_back(first_.back() + part_elems(t));
}

void Layout::lay_flat() {
  first_.push_back(0);
  for (std::size_t t = 0; t < elems_.size(); ++t) first_.push_back(first_.back() + elems(t));
  const std::uint64_t count = shards();
  partition_elems_ = align_up(first_.back(), count * spec_.align_elems) / count;
}

void Layout::lay_boundary() {
  first_.push_back(0);
  std::uint64_t low = 0;
  for (std::size_t t = 0; t < elems_.size(); ++t) {
    first_.push_back(first_.back() + elems(t));
    low = std::max(low, elems(t));
  }
  // The smallest capacity that needs no more runs than there are shards.
  std::uint64_t high = first_.back();
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (runs_within(first_, middle).size() <= shards())
      high = middle;
    else
      low = middle + 1;
  }
  cut_ = runs_within(first_, low);
  cut_.resize(shards() + std::size_t{1}, elems_.size());
  partition_elems_ = align_up(low, spec_.align_elems);
}

void Layout::lay_uneven() {
  for (std::size_t t = 0; t < elems_.size(); ++t) {
    const std::uint64_t rows = rows_of(tensors()[t]);
    const std::uint64_t row = rows == 0 ? 0 : elems(t) / rows;
    std::vector<std::uint64_t>& ends = ends_.emplace_back();
    std::uint64_t end = 0;
    for (const std::uint64_t some : spec_.rows[t]) ends.push_back(end += some * row);
  }
}

// What every shard's buffer reserves for the tensor, padding included.
std::uint64_t Layout::part_elems(std::size_t tensor) const {
  const Shape& shape = tensors()[tensor];
  if (spec_.policy == Policy::zero3) return div_ceil(elems(tensor), shards());
  if (spec_.policy != Policy::rows || elems(tensor) == 0) return elems(tensor);
  const std::uint64_t rows = rows_of(shape);
  return div_ceil(rows, shards()) * (elems(tensor) / rows);
}

std::uint64_t Layout::largest_part(std::size_t tensor) const {
  return div_ceil(largest_unsplit(tensor), std::uint64_t{spec_.split});
}

std::uint64_t Layout::largest_unsplit(std::size_t tensor) const {
  if (spec_.policy == Policy::zero3 || spec_.policy == Policy::rows)
    return held_unsplit(tensor, 0).count;  // all shards but the last ones hold as much
  if (spec_.policy != Policy::uneven_rows) return elems(tensor);
  std::uint64_t largest = 0, begin = 0;
  for (const std::uint64_t end : ends_[tensor]) {
    largest = std::max(largest, end - begin);
    begin = end;
  }
  return largest;
}

std::optional<std::uint32_t> Layout::shard_of(Rank rank) const {
  EBB_CHECK(index_of(rank) < spec_.mesh.world());
  const auto place = spec_.mesh.place_of(rank);
  return place ? std::optional(place->shard) : std::nullopt;
}

FlatRange Layout::held(std::size_t tensor, Rank rank) const {
  const auto shard = shard_of(rank);
  return shard ? held_by(tensor, *shard) : FlatRange{};
}

FlatRange Layout::held_by(std::size_t tensor, std::uint32_t shard) const {
  const FlatRange all = held_unsplit(tensor, shard / spec_.split);
  const std::uint64_t each = div_ceil(all.count, std::uint64_t{spec_.split});
  const std::uint64_t begin = std::min(shard % spec_.split * each, all.count);
  const std::uint64_t count = std::min(each, all.count - begin);
  return count == 0 ? FlatRange{} : FlatRange{all.first + begin, count};
}

FlatRange Layout::held_unsplit(std::size_t tensor, std::uint32_t shard) const {
  EBB_CHECK(tensor < elems_.size() && shard < shards());
  const std::uint64_t count = elems(tensor);
  std::uint64_t begin = 0;  // of the shard's range, in elements of the tensor
  std::uint64_t end = count;
  switch (spec_.policy) {
    case Policy::replicated:
      break;
    case Policy::zero12: {
      const std::uint64_t from = std::max(shard * partition_elems_, first_[tensor]);
      const std::uint64_t to = std::min((shard + 1) * partition_elems_, first_[tensor] + count);
      begin = from - first_[tensor];
      end = std::max(from, to) - first_[tensor];
      break;
    }
    case Policy::zero12_boundary:
      if (tensor < cut_[shard] || tensor >= cut_[shard + 1]) end = 0;
      break;
    case Policy::zero3:
    case Policy::rows:
      begin = std::min(shard * part_elems(tensor), count);
      end = std::min(begin + part_elems(tensor), count);
      break;
    case Policy::layer_wise:
      if (spec_.owners[tensor] != shard) end = 0;
      break;
    case Policy::uneven_rows:
      begin = shard == 0 ? 0 : ends_[tensor][shard - 1];
      end = ends_[tensor][shard];
      break;
  }
  return begin < end ? FlatRange{begin, end - begin} : FlatRange{};
}

Layout::ShardSpan Layout::shards_of(std::size_t tensor, FlatRange range) const {
  const ShardSpan whole = unsplit_shards_of(tensor, range);
  if (spec_.split == 1) return whole;
  const auto shard_with = [&](std::uint32_t shard, std::uint64_t element) {
    const FlatRange all = held_unsplit(tensor, shard);
    const std::uint64_t each = div_ceil(all.count, std::uint64_t{spec_.split});
    return shard * spec_.split + static_cast<std::uint32_t>((element - all.first) / each);
  };
  return {shard_with(whole.first, range.first),
          shard_with(whole.last, range.first + range.count - 1)};
}

Layout::ShardSpan Layout::unsplit_shards_of(std::size_t tensor, FlatRange range) const {
  EBB_CHECK(spec_.policy != Policy::replicated && range.count > 0);
  EBB_CHECK(range.first + range.count <= elems(tensor));
  const std::uint64_t last = range.first + range.count - 1;
  const auto span = [](std::uint64_t a, std::uint64_t b) {
    return ShardSpan{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)};
  };
  switch (spec_.policy) {
    case Policy::zero12:
      return span((first_[tensor] + range.first) / partition_elems_,
                  (first_[tensor] + last) / partition_elems_);
    case Policy::zero12_boundary: {
      const auto after = std::ranges::upper_bound(cut_, tensor);
      const auto shard = static_cast<std::uint64_t>(after - cut_.begin() - 1);
      return span(shard, shard);
    }
    case Policy::layer_wise:
      return span(spec_.owners[tensor], spec_.owners[tensor]);
    case Policy::uneven_rows: {
      const auto shard_with = [&](std::uint64_t element) {
        const std::vector<std::uint64_t>& ends = ends_[tensor];
        return static_cast<std::uint64_t>(std::ranges::upper_bound(ends, element) - ends.begin());
      };
      return span(shard_with(range.first), shard_with(last));
    }
    default:
      return span(range.first / part_elems(tensor), last / part_elems(tensor));
  }
}

std::vector<Piece> Layout::pieces(std::size_t tensor, Rank rank) const {
  std::vector<Piece> pieces;
  std::uint64_t local = 0;
  for (Box& box : boxes_of(tensors()[tensor], held(tensor, rank))) {
    const std::uint64_t count = volume(box.extent);
    pieces.push_back({std::move(box), local});
    local += count;
  }
  return pieces;
}

std::uint64_t Layout::local_elems(std::size_t tensor, Rank rank) const {
  return held(tensor, rank).count;
}

std::uint64_t Layout::buffer_first(std::size_t tensor, Rank rank) const {
  EBB_CHECK(spec_.split == 1);
  const FlatRange range = held(tensor, rank);
  if (range.count == 0) return 0;
  const std::uint64_t shard = *shard_of(rank);
  switch (spec_.policy) {
    case Policy::zero12:
      return first_[tensor] + range.first - shard * partition_elems_;
    case Policy::zero12_boundary:
      return first_[tensor] - first_[cut_[shard]];
    case Policy::uneven_rows:
      return elems_before(tensor, static_cast<std::uint32_t>(shard));
    default:
      return first_[tensor];
  }
}

std::uint64_t Layout::buffer_elems(Rank rank) const {
  EBB_CHECK(spec_.split == 1);
  const auto shard = shard_of(rank);
  if (!shard) return 0;
  switch (spec_.policy) {
    case Policy::zero12:
    case Policy::zero12_boundary:
      return partition_elems_;
    case Policy::layer_wise:
      return shard_elems_[*shard];
    case Policy::uneven_rows:
      return elems_before(elems_.size(), *shard);
    default:
      return first_.back();
  }
}

// Of one shard.
std::uint64_t Layout::elems_before(std::size_t tensor, std::uint32_t shard) const {
  std::uint64_t before = 0;
  for (std::size_t t = 0; t < tensor; ++t) before += held_by(t, shard).count;
  return before;
}

std::uint64_t Layout::padding_elems(Rank rank) const {
  std::uint64_t held_elems = 0;
  for (std::size_t t = 0; t < elems_.size(); ++t) held_elems += local_elems(t, rank);
  return buffer_elems(rank) - held_elems;
}

}  // namespace ebb::formats
