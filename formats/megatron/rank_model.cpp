#include "ebb/formats/megatron/rank_model.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";
constexpr std::string_view kOutput = "output_layer.weight";
// An older model's copy of its embedding at the last stage.
constexpr std::string_view kOldCopy = "word_embeddings_for_head.weight";
constexpr std::string_view kOldEmbedding = "language_model.embedding.word_embeddings.weight";

Error other_parts(const RankFile& here, const RankFile& there, std::string_view what) {
  return Error{Code::layout,
               compose("{}: {}, unlike {} (files of two saves)", here.file.where(), what,
                       there.file.where()),
               "bring together the files that one save wrote"};
}

// torch_dist stacks these; what stands elsewhere, and older models' layers, keep their numbers.
bool may_be_stacked(std::string_view list) {
  return list == "decoder.layers." || list == "encoder.layers.";
}

}  // namespace

Result<RankModel> RankModel::of(const RankGrid& grid) {
  RankModel model(grid);
  EBB_TRY(model.check_alike());
  EBB_TRY(model.count_layers());
  model.find_stacks();
  bool fused = false, apart = false, attention = false;
  for (const RankFile& rank : grid.files)
    for (const ModelChunk& chunk : rank.chunks)
      for (const LocalTensor& tensor : chunk.tensors) {
        fused = fused || tensor.key.ends_with("linear_qkv.layer_norm_weight");
        apart = apart || tensor.key.ends_with(".input_layernorm.weight");
        attention = attention || tensor.key.ends_with(".self_attention.linear_qkv.weight");
      }
  model.norms_apart_ = apart && attention && !fused;
  return model;
}

Result<> RankModel::check_alike() const {
  const std::size_t chunks = grid_->files.front().chunks.size();
  for (const RankFile& rank : grid_->files) {
    if (rank.chunks.size() != chunks)
      return other_parts(rank, grid_->files.front(),
                         compose("holds {} of the model", plural(rank.chunks.size(), "part")));
    const RankFile& first = grid_->at({0, rank.at.pipeline});
    for (std::size_t i = 0; i < chunks; ++i)
      if (!std::ranges::equal(rank.chunks[i].tensors, first.chunks[i].tensors, {},
                              &LocalTensor::key, &LocalTensor::key))
        return other_parts(rank, first, "holds other tensors");
  }
  return {};
}

// Parts follow each other as they compute: the first of each stage, then the second of each.
Result<> RankModel::count_layers() {
  for (std::size_t chunk = 0; chunk < grid_->files.front().chunks.size(); ++chunk)
    for (std::uint32_t p = 0; p < grid_->pipeline; ++p) {
      const RankFile& rank = grid_->at({0, p});
      std::map<std::string, std::set<std::uint64_t>, std::less<>> here;
      for (const LocalTensor& tensor : rank.chunks[chunk].tensors)
        if (const auto key = layer_key(tensor.key))
          here[std::string(key->list)].insert(key->number);
      for (const auto& [list, numbers] : here) {
        if (*numbers.rbegin() + 1 != numbers.size())
          return Error{Code::corrupt,
                       compose("{}: of {} layers in {}, the last is number {}", rank.file.where(),
                               numbers.size(), printable(list), *numbers.rbegin())};
        LayerList& its = lists_[list];
        its.first[{p, chunk}] = its.layers;
        its.layers += numbers.size();
      }
    }
  return {};
}

bool RankModel::said_to_differ() const {
  const RankFile& rank = grid_->files.front();
  const PickleGraph& graph = rank.file.graph();
  const PickleId args = rank.find("args");
  if (args == kNoPickle || !graph.is(args, PickleKind::object)) return false;
  const auto listed = [&](std::string_view name) {
    const PickleId value = attribute_of(graph, args, name);
    return value != kNoPickle &&
           (graph.is(value, PickleKind::list) ||
            (graph.is(value, PickleKind::integer) && graph.integer(value) > 1));
  };
  const PickleId specs = attribute_of(graph, args, "heterogeneous_layers_config_path");
  return argument("hetereogenous_dist_checkpoint").value_or(0) != 0 || listed("moe_layer_freq") ||
         listed("linear_attention_freq") ||
         (specs != kNoPickle && graph.is(specs, PickleKind::string));
}

// Stacked are layers of the same tensors with the same shapes.
void RankModel::find_stacks() {
  using Layer = std::vector<std::pair<std::string_view, Shape>>;
  std::map<std::string_view, std::map<std::pair<const ModelChunk*, std::uint64_t>, Layer>> layers;
  const bool differ = said_to_differ();
  for (auto& [list, its] : lists_) its.stacked = !differ && may_be_stacked(list);
  for (const RankFile& rank : grid_->files) {
    if (rank.at.tensor != 0) continue;
    for (const ModelChunk& chunk : rank.chunks)
      for (const LocalTensor& tensor : chunk.tensors)
        if (const auto key = layer_key(tensor.key)) {
          const TorchTensor* read = tensor.read();
          layers[key->list][{&chunk, key->number}].emplace_back(key->rest,
                                                                read ? read->shape : Shape());
        }
  }
  for (const auto& [list, of_chunks] : layers)
    for (const auto& [at, layer] : of_chunks)
      if (layer != of_chunks.begin()->second) lists_.find(list)->second.stacked = false;
}

std::optional<std::int64_t> RankModel::argument(std::string_view name) const {
  return argument_in(grid_->files.front().file, name);
}

bool RankModel::is_tied() const {
  return grid_->pipeline > 1 &&
         argument("untie_embeddings_and_output_weights") == std::optional<std::int64_t>(0);
}

WholePlace RankModel::place_of_key(RankPlace rank, std::size_t chunk, std::string_view key) const {
  WholePlace place;
  const auto layer = layer_key(key);
  if (!layer) {
    const bool tied = is_tied();
    const bool old = key.ends_with(kOldCopy);
    place.shared = old || (tied && (key == kOutput || key == kEmbedding || key == kOldEmbedding));
    place.name = old ? kOldEmbedding : tied && key == kOutput ? kEmbedding : key;
    return place;
  }
  const auto found = lists_.find(layer->list);
  const LayerList& list = found == lists_.end() ? LayerList() : found->second;
  const auto first = list.first.find({rank.pipeline, chunk});
  const std::uint64_t number = (first == list.first.end() ? 0 : first->second) + layer->number;
  place.name = layer->list;
  if (list.stacked && list.layers > 0) {
    place.layer = number;
    place.layers = list.layers;
  } else {
    place.name += std::to_string(number) + ".";
  }
  place.name += norms_apart_ ? fused_norm_name(layer->rest) : std::string(layer->rest);
  return place;
}

WholePlace RankModel::place_of(RankPlace rank, std::size_t chunk, const LocalTensor& tensor) const {
  WholePlace place = place_of_key(rank, chunk, tensor.key);
  if (grid_->tensor == 1) return place;
  place.cut = cut_of(tensor.key);
  const std::string second_key = second_weight_of(tensor.key);
  if (second_key.empty()) return place;
  const TorchTensor* own = tensor.read();
  const TorchTensor* second = grid_->at(rank).chunks[chunk].find(second_key);
  const auto rows = [](const TorchTensor* of) { return of->shape.empty() ? 0 : of->shape[0]; };
  if (own != nullptr && second != nullptr && second->shape.size() == 2) {
    place.gated = rows(own) == 2 * second->shape[1];
    if (!place.gated && rows(own) != second->shape[1]) place.cut = Cut::unknown;
  } else if (const auto said = argument("swiglu")) {
    place.gated = *said != 0;
  } else {
    place.cut = Cut::unknown;
  }
  return place;
}

}  // namespace ebb::formats::megatron
