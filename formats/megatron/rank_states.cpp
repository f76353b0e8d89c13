#include "ebb/formats/megatron/rank_states.h"

#include <algorithm>

#include "ebb/formats/catalog/part_of_save.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/megatron/optimizers.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::uint64_t kSample = 64;  // elements

Result<bool> agree(const torch_save::StoredCopy& master, const torch_save::StoredCopy& weight,
                   std::uint64_t first, std::uint64_t count) {
  const DType from = master.tensor.dtype, to = weight.tensor.dtype;
  ByteVector wide(count * bytes_of(from)), narrow(count * bytes_of(to)), rounded(narrow.size());
  EBB_TRY(torch_save::read_copy(master, first * bytes_of(from), wide));
  EBB_TRY(torch_save::read_copy(weight, first * bytes_of(to), narrow));
  cast_floats(from, wide, to, rounded);
  return rounded == narrow;
}

// What stands beside the states in a dict: groups, a scaler.
Result<> add_settings(const torch_save::OpenFile& file, PickleId from, Value& into) {
  for (const std::string_view key : {kParamGroups, kScaler}) {
    const PickleId part = file.graph().find(from, key);
    if (part == kNoPickle) continue;
    EBB_TRY_ASSIGN(ReadablePart read, file.value_at(part));
    into.add(key, read.value.value_or(Value()));
  }
  return {};
}

Result<Value> value_of_optimizer(const torch_save::OpenFile& file, PickleId id) {
  Value value = Value::of_dict();
  EBB_TRY(add_settings(file, id, value));
  const PickleId wrapped = file.graph().find(id, kOptimizer);
  if (wrapped == kNoPickle) return value;
  Value inner = Value::of_dict();
  EBB_TRY(add_settings(file, wrapped, inner));
  value.add(kOptimizer, std::move(inner));
  return value;
}

}  // namespace

Result<torch_save::OpenFile> RankSource::open(const RankFile& rank, std::string_view name) const {
  const std::string path = rank.file_beside(name);
  EBB_TRY_ASSIGN(auto file, torch_save::OpenFile::open(tree, path, checkpoint, std::nullopt));
  unknown.look_at(file.graph(), path);
  checkpoint.building().files[file.number()].rank = Rank{grid.number_of(rank.at)};
  return file;
}

std::vector<LocalParam> params_of(const RankModel& model, const RankFile& rank) {
  std::vector<LocalParam> params;
  for (std::size_t chunk = 0; chunk < rank.chunks.size(); ++chunk)
    for (const LocalTensor& tensor : rank.chunks[chunk].tensors)
      if (tensor.read() != nullptr)
        params.push_back({&tensor, chunk, model.place_of(rank.at, chunk, tensor)});
  return params;
}

Result<bool> are_rounded(const torch_save::OpenFile& masters, const TorchTensor& master,
                         const torch_save::OpenFile& weights, const TorchTensor& weight) {
  if (master.shape != weight.shape || !is_floating(master.dtype) || !is_floating(weight.dtype))
    return false;
  EBB_TRY_ASSIGN(const auto wide, masters.copy_of(master));
  EBB_TRY_ASSIGN(const auto narrow, weights.copy_of(weight));
  const std::uint64_t elems = weight.elems();
  const std::uint64_t count = std::min(elems, kSample);
  if (count == 0) return true;
  EBB_TRY_ASSIGN(const bool begin, agree(wide, narrow, 0, count));
  if (!begin || count == elems) return begin;
  return agree(wide, narrow, elems - count, count);
}

void leave_states(const RankSource& source, const std::vector<LocalParam>& params,
                  const std::vector<std::string>& words, std::string_view why,
                  std::string_view hint) {
  if (hint.empty()) hint = kConvertHint;
  for (const std::string& word : words)
    for (const LocalParam& param : params)
      source.tensors.leave(param.place, word, {std::string(why), std::string(hint)});
}

void leave_missing_states(const RankSource& source) {
  for (const RankFile& rank : source.grid.files)
    if (rank.find(kOptimizer) != kNoPickle)
      leave_states(source, params_of(source.model, rank), {"param"},
                   compose("of an optimizer whose groups are there, and whose states are not: {} "
                           "(or {}0.pt) is missing beside each {}",
                           kBuffersFile, kLayerWise, kModelFile),
                   kTogetherHint);
}

Result<Value> optimizer_value(const torch_save::OpenFile& file, PickleId id) {
  const PickleGraph& graph = file.graph();
  if (!graph.is(id, PickleKind::list)) return value_of_optimizer(file, id);
  Value all = Value::of_dict();
  std::int64_t number = 0;
  for (const PickleId one : graph.items(id)) {
    EBB_TRY_ASSIGN(Value part, value_of_optimizer(file, one));
    all.entries.emplace_back(Value::of_int(number++), std::move(part));
  }
  return all;
}

}  // namespace ebb::formats::megatron
