#include "ebb/formats/folders/rank_slices.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::folders {
namespace {

constexpr std::uint64_t kMostAlike = 1024;  // elements of what nanochat does not cut

class Slices {
 public:
  Slices(JoinedCheckpoint& whole, std::span<const RankBegin> ranks)
      : whole_(whole), catalog_(whole.building()), ranks_(ranks) {}

  Result<> run() {
    for (std::size_t i = 0; i < ranks_.front().tensors; ++i)
      shapes_.insert(catalog_.tensors[i].shape);
    join_values();
    find_stacked();
    std::map<std::string, std::vector<TensorEntry>> of_key;
    std::vector<std::string> order;
    for (std::size_t i = ranks_.front().tensors; i < catalog_.tensors.size(); ++i) {
      TensorEntry& tensor = catalog_.tensors[i];
      for (Chunk& chunk : tensor.chunks) chunk.holder = rank_of(i);
      auto& all = of_key[*tensor.key];
      if (all.empty()) order.push_back(*tensor.key);
      all.push_back(std::move(tensor));
    }
    catalog_.tensors.resize(ranks_.front().tensors);
    for (const std::string& key : order) {
      EBB_TRY_ASSIGN(TensorEntry joined, joined_of(std::move(of_key[key])));
      catalog_.tensors.push_back(std::move(joined));
    }
    catalog_.world = static_cast<std::uint32_t>(ranks_.size());
    return {};
  }

 private:
  Rank rank_of(std::size_t tensor) const {
    const auto behind = std::ranges::upper_bound(ranks_, tensor, {}, &RankBegin::tensors);
    return Rank{static_cast<std::uint32_t>(behind - ranks_.begin() - 1)};
  }

  // The first rank's stay; what another has under the same key is noted where it is another.
  void join_values() {
    std::map<std::string, std::string> known;
    std::vector<std::string> differ;
    auto& values = catalog_.values;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(ranks_.front().values);
    const auto again = [&](const ValueEntry& value) {
      const std::string text = to_json(value.value);
      const auto [first, fresh] = known.emplace(value.key, text);
      if (first->second != text) differ.push_back(value.key);
      return !fresh;
    };
    values.erase(std::remove_if(begin, values.end(), again), values.end());
    if (!differ.empty())
      catalog_.notes.push_back(
          compose("the first rank's is shown of what is another's on others: {}", some_of(differ)));
    auto& containers = catalog_.containers;
    std::set<std::string> paths;
    containers.erase(
        std::remove_if(
            containers.begin() + static_cast<std::ptrdiff_t>(ranks_.front().containers),
            containers.end(),
            [&](const ContainerEntry& entry) { return !paths.insert(joined(entry.path)).second; }),
        containers.end());
  }

  // The numbers of groups whose states are those of all their parameters in one.
  void find_stacked() {
    std::set<std::string> groups;
    for (const ValueEntry& value : catalog_.values)
      if (value.key.ends_with(".kind") && value.value.text == "muon")
        groups.insert(value.key.substr(0, value.key.size() - std::string_view("kind").size()));
    for (const ValueEntry& value : catalog_.values) {
      if (!value.key.ends_with(".params")) continue;
      if (!groups.contains(
              value.key.substr(0, value.key.size() - std::string_view("params").size())))
        continue;
      for (const Value& number : value.value.items)
        stacked_.emplace(number.integer, value.value.items.size());
    }
  }

  // How many parameters' states lie in the tensor one upon the other; 0: it is of one.
  std::uint64_t stacked_in(const TensorEntry& tensor) const {
    if (tensor.path.size() < 2) return 0;
    const auto* number = std::get_if<std::int64_t>(&tensor.path[tensor.path.size() - 2]);
    const auto group = number == nullptr ? stacked_.end() : stacked_.find(*number);
    return group == stacked_.end() ? 0 : group->second;
  }

  Result<ByteVector> bytes_of_whole(const TensorEntry& tensor) const {
    ByteVector bytes(volume(tensor.shape) * bytes_of(tensor.dtype));
    if (!bytes.empty()) EBB_TRY(whole_.read(tensor, tensor.chunks.front(), 0, bytes));
    return bytes;
  }

  Result<bool> are_same(const std::vector<TensorEntry>& all) const {
    EBB_TRY_ASSIGN(const ByteVector first, bytes_of_whole(all.front()));
    for (const TensorEntry& other : all) {
      if (other.shape != all.front().shape) return false;
      EBB_TRY_ASSIGN(const ByteVector bytes, bytes_of_whole(other));
      if (bytes != first) return false;
    }
    return true;
  }

  // Each rank's is the whole. Read only where shapes leave it open.
  Result<bool> are_copies(const std::vector<TensorEntry>& all, const Shape& cut) const {
    const Shape& shape = all.front().shape;
    const std::uint64_t stacked = stacked_in(all.front());
    const bool may_be_whole = stacked > 0 ? shape[0] == stacked : shapes_.contains(shape);
    if (!shape.empty() && !may_be_whole) return false;
    const bool may_be_cut = stacked == 0 && !shape.empty() && shapes_.contains(cut);
    if (may_be_cut && volume(shape) > kMostAlike) return false;
    return are_same(all);
  }

  // What rows of all ranks make together; nullopt: they are no rows of one tensor.
  std::optional<Shape> together(const std::vector<TensorEntry>& all) const {
    Shape cut = all.front().shape;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const TensorEntry& other = all[rank];
      if (other.dtype != all.front().dtype || other.shape.size() != cut.size()) return std::nullopt;
      if (!std::equal(cut.begin() + (cut.empty() ? 0 : 1), cut.end(),
                      other.shape.begin() + (cut.empty() ? 0 : 1)))
        return std::nullopt;
      if (!cut.empty()) cut[0] += other.shape[0];
    }
    return cut;
  }

  Result<TensorEntry> joined_of(std::vector<TensorEntry> all) const {
    TensorEntry& first = all.front();
    if (all.size() == 1) return std::move(first);  // the only rank that has it has all of it
    const auto cut = together(all);
    if (!cut || all.size() != ranks_.size())
      return Error{Code::layout,
                   compose("{}: {} of {} ranks have it, as {} and {}: files of two saves",
                           json_string(*first.key), all.size(), ranks_.size(),
                           to_string(first.shape), to_string(all.back().shape))};
    EBB_TRY_ASSIGN(const bool copies, are_copies(all, *cut));
    if (copies) return std::move(first);
    if (cut->empty() || (stacked_in(first) == 0 && !shapes_.contains(*cut)))
      return Error{Code::incomplete,
                   compose("{}: the parts of {} ranks make {}, and the model has no parameter of "
                           "that shape: files of ranks are missing, or of another save",
                           json_string(*first.key), all.size(), to_string(*cut)),
                   "bring the files of all ranks together"};
    TensorEntry whole = std::move(first);
    std::uint64_t rows = whole.shape[0];
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      for (Chunk& chunk : all[rank].chunks) {
        chunk.box.offset[0] += rows;
        whole.chunks.push_back(std::move(chunk));
      }
      rows += all[rank].shape[0];
    }
    whole.shape = *cut;
    return whole;
  }

  JoinedCheckpoint& whole_;
  Catalog& catalog_;
  std::span<const RankBegin> ranks_;
  std::set<Shape> shapes_;                         // of the model
  std::map<std::int64_t, std::uint64_t> stacked_;  // numbers of such groups, and how many
};

}  // namespace

Result<> join_slices(JoinedCheckpoint& whole, std::span<const RankBegin> ranks) {
  return Slices(whole, ranks).run();
}

}  // namespace ebb::formats::folders
