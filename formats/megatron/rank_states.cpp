#include "ebb/formats/megatron/rank_states.h"

#include <algorithm>

#include "ebb/formats/core/float_cast.h"

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

}  // namespace

Result<torch_save::OpenFile> RankSource::open(const RankFile& rank, std::string_view name) const {
  const std::string path = rank.file_beside(name);
  EBB_TRY_ASSIGN(auto file,
                 torch_save::OpenFile::open(tree, path, checkpoint, std::nullopt));
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
                  const std::vector<std::string>& words, std::string_view why) {
  for (const std::string& word : words)
    for (const LocalParam& param : params)
      source.tensors.leave(param.place, word,
                           {std::string(why),
                            "let the job load it once with --ckpt-convert-format torch_dist and "
                            "--ckpt-convert-save DIR: torch_dist is read"});
}

}  // namespace ebb::formats::megatron
