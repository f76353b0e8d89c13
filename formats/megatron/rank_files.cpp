#include "ebb/formats/megatron/rank_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/rank_names.h"
#include "ebb/formats/pickle/known_globals.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::uint32_t kMostOfAxis = 1u << 10;  // ranks
constexpr std::size_t kMostDepth = 32;           // dicts in a model's dict

// The numbers of "mp_rank_00_001"; empty: it is no rank's folder.
std::vector<std::uint32_t> numbers_of(std::string_view folder) {
  std::vector<std::uint32_t> numbers;
  if (!folder.starts_with(kRankFolder)) return numbers;
  folder.remove_prefix(kRankFolder.size());
  for (;;) {
    const std::size_t end = std::min(folder.find('_'), folder.size());
    const auto number = parse_number<std::uint32_t>(folder.substr(0, end));
    if (!number || *number >= kMostOfAxis) return {};
    numbers.push_back(*number);
    if (end == folder.size()) return numbers;
    folder.remove_prefix(end + 1);
  }
}

struct Found {
  std::string folder;
  std::vector<std::uint32_t> numbers;
};

std::vector<Found> found_folders(const SourceTree& tree) {
  std::vector<Found> found;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash + 1) != kModelFile) continue;
    std::string folder = entry.name.substr(0, slash);
    auto numbers = numbers_of(folder);
    if (!numbers.empty()) found.push_back({std::move(folder), std::move(numbers)});
  }
  return found;
}

// What the model's part consists of, which older models keep in dicts inside each other.
class ChunkReader {
 public:
  explicit ChunkReader(const torch_save::OpenFile& file) : file_(file), graph_(file.graph()) {}

  Result<ModelChunk> read(PickleId model) {
    EBB_TRY(walk(model, "", 0));
    return std::move(chunk_);
  }

 private:
  Result<> walk(PickleId id, const std::string& key, std::size_t depth) {
    constexpr std::uint64_t kEntryBytes = 128;
    EBB_TRY(graph_.charge(kEntryBytes + 2 * key.size()));
    if (graph_.is(id, PickleKind::dict)) return walk_dict(id, key, depth);
    if (!is_torch_tensor(graph_, id) || is_extra_state(key)) {
      chunk_.others.emplace_back(key, id);
      return {};
    }
    chunk_.numbers.emplace(key, chunk_.tensors.size());
    if (auto form = unread_form(graph_, id)) {
      chunk_.tensors.push_back({key, std::move(*form)});
      return {};
    }
    auto tensor = torch_tensor(graph_, id);
    if (!tensor) return std::move(tensor).error().about(json_string(key));
    chunk_.tensors.push_back({key, *std::move(tensor)});
    return {};
  }

  Result<> walk_dict(PickleId id, const std::string& key, std::size_t depth) {
    if (depth == kMostDepth)
      return Error{Code::limit, compose("{}: a model in more than {} dicts inside each other",
                                        file_.where(), kMostDepth)};
    const std::span<const PickleId> items = graph_.items(id);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (!graph_.is(items[i], PickleKind::string))
        return Error{Code::corrupt,
                     compose("{}: the model's dict has a key that is no text", file_.where())};
      std::string below = key.empty() ? "" : key + ".";
      below += graph_.text(items[i]);
      if (!known_.insert(below).second)
        return Error{Code::corrupt, compose("{}: the model's dict holds {} twice", file_.where(),
                                            json_string(below))};
      EBB_TRY(walk(items[i + 1], below, depth + 1));
    }
    return {};
  }

  const torch_save::OpenFile& file_;
  const PickleGraph& graph_;
  ModelChunk chunk_;
  std::set<std::string> known_;
};

// "model", or "model0", "model1", ... of a virtual pipeline.
Result<std::vector<ModelChunk>> chunks_of(const torch_save::OpenFile& file) {
  const PickleGraph& graph = file.graph();
  std::vector<PickleId> models;
  if (const PickleId only = graph.find(graph.root(), "model"); only != kNoPickle)
    models.push_back(only);
  for (PickleId next; models.size() < kMostOfAxis; models.push_back(next)) {
    next = graph.find(graph.root(), compose("model{}", models.size()));
    if (next == kNoPickle) break;
  }
  if (models.empty() || !graph.is(models.front(), PickleKind::dict))
    return Error{Code::corrupt,
                 file.where() + ": holds no dict of a model under \"model\" or \"model0\""};
  std::vector<ModelChunk> chunks;
  for (const PickleId model : models) {
    EBB_TRY_ASSIGN(ModelChunk chunk, ChunkReader(file).read(model));
    for (const LocalTensor& tensor : chunk.tensors)
      if (is_of_expert(tensor.key))
        return Error{Code::unsupported,
                     compose("{}: {}: experts saved with --ckpt-format torch are not read by this "
                             "version",
                             file.where(), json_string(tensor.key)),
                     std::string(kConvertHint)};
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

class GridReader {
 public:
  GridReader(const SourceTree& tree, torch_save::FileCheckpoint& checkpoint, UnknownNames& unknown)
      : tree_(tree), checkpoint_(checkpoint), unknown_(unknown) {}

  Result<RankGrid> run() {
    const std::vector<Found> found = found_folders(tree_);
    if (found.empty())
      return Error{Code::incomplete, compose("{}: no rank's {} is there", tree_.root(), kModelFile),
                   std::string(kTogetherHint)};
    EBB_TRY(open(found.front().folder));
    EBB_TRY(size_up(found));
    EBB_TRY(check_all_there(found));
    for (std::uint32_t t = 0; t < grid_.tensor; ++t)
      for (std::uint32_t p = 0; p < grid_.pipeline; ++p) {
        const std::string& folder = folders_.at({t, p});
        if (folder != found.front().folder) EBB_TRY(open(folder));
        torch_save::OpenFile& file = open_.at(folder);
        checkpoint_.building().files[file.number()].rank = Rank{grid_.number_of({t, p})};
        EBB_TRY_ASSIGN(std::vector<ModelChunk> chunks, chunks_of(file));
        grid_.files.push_back({{t, p}, folder, std::move(file), std::move(chunks)});
      }
    return std::move(grid_);
  }

 private:
  Result<> open(const std::string& folder) {
    const std::string name = compose("{}/{}", folder, kModelFile);
    EBB_TRY_ASSIGN(auto file, torch_save::OpenFile::open(tree_, name, checkpoint_, std::nullopt));
    unknown_.look_at(file.graph(), name);
    if (!file.graph().is(file.graph().root(), PickleKind::dict))
      return Error{Code::corrupt, file.where() + ": holds no dict"};
    open_.emplace(folder, std::move(file));
    return {};
  }

  // By the arguments, or else by the folders that are there.
  Result<> size_up(const std::vector<Found>& found) {
    const torch_save::OpenFile& first = open_.begin()->second;
    const auto said = [&](std::string_view name) -> std::optional<std::uint32_t> {
      const auto size = argument_in(first, name);
      if (!size || *size < 1 || *size > kMostOfAxis) return std::nullopt;
      return static_cast<std::uint32_t>(*size);
    };
    const auto tensor = said("tensor_model_parallel_size");
    const auto pipeline = said("pipeline_model_parallel_size");
    const auto experts = said("expert_model_parallel_size").value_or(1);
    for (const auto& [folder, numbers] : found) {
      if (experts > 1 || numbers.size() > 2)
        return Error{Code::unsupported,
                     compose("{}/{}: of a job with expert parallelism, which is not read in "
                             "Megatron's --ckpt-format torch by this version",
                             tree_.root(), folder),
                     std::string(kConvertHint)};
      const RankPlace at{numbers[0], numbers.size() > 1 ? numbers[1] : 0};
      grid_.tensor = std::max(grid_.tensor, at.tensor + 1);
      grid_.pipeline = std::max(grid_.pipeline, at.pipeline + 1);
      if ((tensor && at.tensor >= *tensor) || (pipeline && at.pipeline >= *pipeline))
        return Error{
            Code::layout,
            compose("{}/{}: lies there, though the arguments in {} speak of {} "
                    "tensor-parallel and {} pipeline-parallel ranks: files of two saves",
                    tree_.root(), folder, first.where(), tensor.value_or(1), pipeline.value_or(1)),
            "bring together the files that one save wrote"};
      if (const auto [other, fresh] = folders_.emplace(at, folder); !fresh)
        return Error{Code::layout,
                     compose("{}: {} and {} are of one rank", tree_.root(), other->second, folder)};
    }
    grid_.tensor = tensor.value_or(grid_.tensor);
    grid_.pipeline = pipeline.value_or(grid_.pipeline);
    return {};
  }

  Result<> check_all_there(const std::vector<Found>& found) const {
    const bool stages = grid_.pipeline > 1 || found.front().numbers.size() > 1;
    MissingFiles missing;
    std::optional<std::uint32_t> first;
    for (std::uint32_t t = 0; t < grid_.tensor; ++t)
      for (std::uint32_t p = 0; p < grid_.pipeline; ++p) {
        if (folders_.contains({t, p})) continue;
        if (!first) first = grid_.number_of({t, p});
        const std::string stage = stages ? "_" + zero_padded(p, 3) : "";
        missing.add(compose("{}{}{}/{}", kRankFolder, zero_padded(t, 2), stage, kModelFile));
      }
    if (missing.none()) return {};
    Error error = missing.error(tree_, std::uint64_t{grid_.tensor} * grid_.pipeline);
    error.place.rank = first;
    return error;
  }

  const SourceTree& tree_;
  torch_save::FileCheckpoint& checkpoint_;
  UnknownNames& unknown_;
  RankGrid grid_;
  std::map<std::string, torch_save::OpenFile> open_;
  std::map<RankPlace, std::string> folders_;
};

}  // namespace

void MissingFiles::add(std::string name) {
  constexpr std::size_t kShown = 4;
  if (++count_ <= kShown) first_.push_back(std::move(name));
}

Error MissingFiles::error(const SourceTree& tree, std::uint64_t all) const {
  std::string names = some_of(first_);
  if (count_ > first_.size()) names += compose(" and {} more", count_ - first_.size());
  Error error{Code::incomplete,
              compose("{}: {} of the {} ranks' files {} missing: {}", tree.root(), count_, all,
                      count_ == 1 ? "is" : "are", names),
              std::string(kTogetherHint)};
  error.place.file = first_.front();
  return error;
}

std::optional<std::int64_t> argument_in(const torch_save::OpenFile& file, std::string_view name) {
  const PickleGraph& graph = file.graph();
  const PickleId args = graph.find(graph.root(), "args");
  if (args == kNoPickle || !graph.is(args, PickleKind::object)) return std::nullopt;
  const PickleId value = attribute_of(graph, args, name);
  const bool whole = value != kNoPickle &&
                     (graph.is(value, PickleKind::integer) || graph.is(value, PickleKind::boolean));
  return whole ? std::optional(graph.integer(value)) : std::nullopt;
}

const TorchTensor* ModelChunk::find(std::string_view key) const {
  const auto found = numbers.find(key);
  return found == numbers.end() ? nullptr : tensors[found->second].read();
}

std::string RankFile::file_beside(std::string_view name) const {
  return compose("{}/{}", folder, name);
}

PickleId RankFile::find(std::string_view key) const {
  return file.graph().find(file.graph().root(), key);
}

Result<RankGrid> open_rank_files(const SourceTree& tree, torch_save::FileCheckpoint& checkpoint,
                                 UnknownNames& unknown) {
  return GridReader(tree, checkpoint, unknown).run();
}

}  // namespace ebb::formats::megatron
