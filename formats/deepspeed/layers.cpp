#include "ebb/formats/deepspeed/layers.h"

#include <algorithm>
#include <charconv>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::string_view kTied = "tied_modules.";
constexpr std::uint64_t kCompared = 256;  // elements that are compared

// The layer that a name begins with: "3.attn.weight".
std::optional<std::uint32_t> layer_of(std::string_view name) {
  std::uint32_t layer = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(stop - name.data());
  if (error != std::errc{} || digits == 0 || digits >= name.size() || name[digits] != '.')
    return std::nullopt;
  return layer;
}

}  // namespace

Result<> LayerFiles::check(const std::vector<Group>& listed,
                           const std::set<std::string, std::less<>>& buffers,
                           std::uint32_t tensor_ranks) {
  buffers_ = buffers;
  for (const Group& group : listed)
    for (const Param& param : group) params_.insert(param.name);
  for (const auto* names : {&params_, &buffers_})
    for (const std::string& name : *names) {
      if (const auto layer = layer_of(name)) layers_.insert(*layer);
      const std::size_t dot = name.find('.', kTied.size());
      if (name.starts_with(kTied) && dot != std::string::npos)
        tied_.insert(name.substr(0, dot + 1));
    }
  const bool numbered = files_.layers.empty() || tensor_ranks > 1 ||
                        files_.layers.begin()->second.find("-model_0") != std::string::npos;
  for (const std::uint32_t layer : layers_)
    for (std::uint32_t rank = 0; rank < tensor_ranks; ++rank) {
      if (files_.layers.contains({layer, rank})) continue;
      const std::string name =
          compose("{}layer_{}{}-model_states.pt", files_.folder, zero_padded(layer, 2),
                  numbered ? "-model_" + zero_padded(rank, 2) : std::string());
      return missing_file(
          tree_, compose("{}: the weights of layer {} are missing: {}", files_.tag, layer, name),
          name);
    }
  note_gaps();
  return {};
}

void LayerFiles::note_gaps() {
  if (files_.layers.empty()) return;
  std::vector<std::string> gaps;
  for (std::uint32_t layer = 0; layer < files_.layers.rbegin()->first.first && gaps.size() < 8;
       ++layer)
    if (const auto next = files_.layers.lower_bound({layer, 0}); next->first.first != layer)
      gaps.push_back(std::to_string(layer));
  if (gaps.empty()) return;
  std::string list;
  for (const std::string& gap : gaps) list += (list.empty() ? "" : ", ") + gap;
  checkpoint_.building().notes.push_back(
      compose("no file of layer {}: functions have none, and no optimizer state is of it", list));
}

Result<std::vector<TensorEntry>> LayerFiles::weights_of(std::uint32_t tensor_rank,
                                                        const Join& join) {
  read_.clear();
  for (const auto& [place, name] : files_.layers)
    if (place.second == tensor_rank) EBB_TRY(read_layer(place.first, name, tensor_rank, join));
  return partitions_.take();
}

Result<> LayerFiles::read_layer(std::uint32_t layer, const std::string& name,
                                std::uint32_t tensor_rank, const Join& join) {
  EBB_TRY_ASSIGN(const File file, open_archive(tree_, checkpoint_, name, std::nullopt));
  std::vector<Entry> entries;
  EBB_TRY_ASSIGN(const auto tensors, tensors_at_the_top(file));
  for (const auto& [key, id] : tensors) {
    if (leave_unread(checkpoint_, file.graph(), id, compose("{}.{}", layer, key), "param"))
      continue;
    EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(file.graph(), id));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file.archive, file.file, tensor));
    entries.push_back({key, flat});
  }
  EBB_TRY_ASSIGN(const std::string prefix, prefix_of(layer, entries, tensor_rank, join));
  for (const Entry& entry : entries) {
    const std::string param = prefix + entry.key;
    if (!read_.insert(param).second) continue;  // a layer that is tied to one before
    EBB_TRY(partitions_.add_module(param, buffers_.contains(param) ? "buffer" : "param", entry.flat,
                                   file.where));
  }
  return {};
}

// Layers are numbered, but those that are tied to others: nothing in their files says which.
Result<std::string> LayerFiles::prefix_of(std::uint32_t layer, const std::vector<Entry>& entries,
                                          std::uint32_t tensor_rank, const Join& join) const {
  const std::string numbered = compose("{}.", layer);
  if (layers_.contains(layer) || entries.empty()) return numbered;
  for (const std::string& prefix : tied_) {
    EBB_TRY_ASSIGN(const bool tied, is_tied(prefix, entries, tensor_rank, join));
    if (!tied) continue;
    checkpoint_.building().notes.push_back(
        compose("layer {} is {}: its elements say so", layer,
                json_string(prefix.substr(0, prefix.size() - 1))));
    return prefix;
  }
  return numbered;
}

// The tied module has the same parameters, and rounded they begin with the same elements.
Result<bool> LayerFiles::is_tied(const std::string& prefix, const std::vector<Entry>& entries,
                                 std::uint32_t tensor_rank, const Join& join) const {
  bool any = false;
  for (const Entry& entry : entries) {
    const std::string name = prefix + entry.key;
    if (!params_.contains(name) && !buffers_.contains(name)) continue;  // frozen
    const TensorEntry* master = join.find(name, "master", tensor_rank);
    if (master == nullptr) continue;
    if (master->shape != entry.flat.shape) return false;
    EBB_TRY_ASSIGN(const bool alike, begins_like(*master, entry.flat));
    if (!alike) return false;
    any = true;
  }
  return any;
}

Result<bool> LayerFiles::begins_like(const TensorEntry& master, const Flat& weights) const {
  if (!is_floating(weights.dtype) || !is_floating(master.dtype)) return false;
  const auto is_first = [](const Chunk& chunk) {
    return std::ranges::all_of(chunk.box.offset, [](std::uint64_t at) { return at == 0; });
  };
  const auto chunk = std::ranges::find_if(master.chunks, is_first);
  if (chunk == master.chunks.end()) return weights.elems == 0;
  // The first row of a box lies as it does in the whole.
  const std::uint64_t row = chunk->box.extent.empty() ? 1 : chunk->box.extent.back();
  const std::uint64_t count = std::min({row, weights.elems, kCompared});
  ByteVector exact(count * bytes_of(master.dtype));
  ByteVector stored(count * bytes_of(weights.dtype));
  const std::vector<FileEntry>& names = checkpoint_.catalog().files;
  EBB_TRY_ASSIGN(const auto masters, tree_.open(names[chunk->file].name));
  EBB_TRY(masters->read(chunk->offset, exact));
  EBB_TRY_ASSIGN(const auto layer, tree_.open(names[weights.file].name));
  EBB_TRY(layer->read(weights.at, stored));
  ByteVector made(stored.size());
  cast_floats(master.dtype, exact, weights.dtype, made);
  return std::ranges::equal(made, stored);
}

}  // namespace ebb::formats::deepspeed
