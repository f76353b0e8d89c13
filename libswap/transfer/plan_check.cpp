#include "libswap/transfer/plan_check.h"

#include <filesystem>
#include <map>
#include <tuple>

#include "formats/core/check.h"
#include "formats/core/json_text.h"

namespace libswap {

using formats::Code;
using formats::EmitPlan;
using formats::Error;
using formats::Fragment;
using formats::OutputFile;
using formats::Result;
using formats::TensorData;
using formats::TensorEntry;

namespace {

template <typename Visit>
void for_each_file(const EmitPlan& plan, Visit visit) {
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *files) visit(file);
}

template <typename Visit>
void for_each_data(const EmitPlan& plan, Visit visit) {
  for_each_file(plan, [&](const OutputFile& file) {
    for (const Fragment& fragment : file.fragments)
      if (const auto* data = std::get_if<TensorData>(&fragment.data)) visit(file, *data);
  });
}

Result<> check_name(const std::string& name) {
  const std::filesystem::path path(name);
  bool below = !name.empty() && path.is_relative() && path.has_filename();
  for (const auto& part : path) below = below && part != ".." && part != ".";
  if (below && name.find('\0') == std::string::npos) return {};
  return Error{Code::usage,
               "'" + formats::printable(name) + "' cannot be a file of a checkpoint directory",
               {}};
}

class FragmentCheck {
 public:
  FragmentCheck(const OutputFile& file, const formats::Catalog& source,
                std::span<const std::uint32_t> source_tensor_of)
      : file_(file), source_(source), source_tensor_of_(source_tensor_of) {}

  Result<> run() {
    std::uint64_t end = 0;
    bool after_data = false;
    for (const Fragment& fragment : file_.fragments) {
      TRY_ASSIGN(const std::uint64_t size, size_of(fragment));
      if (fragment.offset < end) return failure(fragment, "begins inside the one before it");
      if (fragment.offset > file_.size || size > file_.size - fragment.offset)
        return failure(fragment, "of " + std::to_string(size) + " bytes ends beyond the file's " +
                                     std::to_string(file_.size));
      if (std::holds_alternative<formats::Sealed>(fragment.data) && !after_data)
        return failure(fragment, "seals data that is not there");
      after_data = std::holds_alternative<TensorData>(fragment.data);
      end = fragment.offset + size;
    }
    return {};
  }

 private:
  Error failure(const Fragment& fragment, const std::string& what) const {
    return {Code::layout,
            formats::printable(file_.name) + ":" + std::to_string(fragment.offset) +
                ": the planned part " + what,
            {}};
  }

  Result<std::uint64_t> size_of(const Fragment& fragment) const {
    if (const auto* bytes = std::get_if<formats::ByteVector>(&fragment.data)) return bytes->size();
    if (const auto* sealed = std::get_if<formats::Sealed>(&fragment.data)) return sealed->size;
    const auto& data = std::get<TensorData>(fragment.data);
    if (data.tensor >= source_tensor_of_.size() ||
        source_tensor_of_[data.tensor] >= source_.tensors.size())
      return failure(fragment, "is of tensor " + std::to_string(data.tensor) + " of " +
                                   std::to_string(source_tensor_of_.size()));
    const TensorEntry& tensor = source_.tensors[source_tensor_of_[data.tensor]];
    if (!inside(data.box, tensor.shape))
      return failure(fragment, formats::to_string(data.box) + " lies outside " + label_of(tensor) +
                                   " of shape " + formats::to_string(tensor.shape));
    const auto elems = formats::checked_volume(data.box.extent);
    const auto size = elems ? formats::packed_bytes(tensor.dtype, *elems) : std::nullopt;
    if (!size) return failure(fragment, "has more than 2^64 bytes");
    return *size;
  }

  const OutputFile& file_;
  const formats::Catalog& source_;
  std::span<const std::uint32_t> source_tensor_of_;
};

}  // namespace

Result<> check_plan(const EmitPlan& plan, const formats::Catalog& source,
                    std::span<const std::uint32_t> source_tensor_of) {
  std::set<std::string> names;
  Result<> result;
  for_each_file(plan, [&](const OutputFile& file) {
    if (result) result = check_name(file.name);
    if (result && !names.insert(file.name).second)
      result = Error{Code::usage, formats::printable(file.name) + ": planned twice", {}};
    if (result) result = FragmentCheck(file, source, source_tensor_of).run();
  });
  return result;
}

Repeats repeats_of(const EmitPlan& plan) {
  using Key = std::tuple<std::uint32_t, std::vector<std::uint64_t>, std::vector<std::uint64_t>>;
  std::set<Key> seen;
  Repeats repeats;
  for_each_data(plan, [&](const OutputFile&, const TensorData& data) {
    if (!seen.emplace(data.tensor, data.box.offset, data.box.extent).second) repeats.insert(&data);
  });
  return repeats;
}

Result<> check_stores_everything(const EmitPlan& plan, const formats::Catalog& source,
                                 std::span<const std::uint32_t> source_tensor_of,
                                 const Repeats& repeats) {
  formats::Catalog planned;
  for (const std::uint32_t index : source_tensor_of) {
    if (index >= source.tensors.size())
      return Error{Code::layout, "the source has no tensor " + std::to_string(index), {}};
    TensorEntry tensor = source.tensors[index];
    tensor.chunks.clear();
    planned.tensors.push_back(std::move(tensor));
  }
  std::map<const OutputFile*, std::uint32_t> number_of;
  for_each_data(plan, [&](const OutputFile& file, const TensorData& data) {
    if (repeats.contains(&data)) return;
    const auto [place, made] =
        number_of.emplace(&file, static_cast<std::uint32_t>(planned.files.size()));
    if (made) planned.files.push_back({file.name, file.size, file.writer});
    formats::Chunk chunk;
    chunk.box = data.box;
    chunk.file = place->second;
    chunk.holder = file.writer;
    planned.tensors[data.tensor].chunks.push_back(std::move(chunk));
  });
  if (Result<> proof = prove_coverage(planned); !proof)
    return Error{Code::layout, "the planned files: " + proof.error().message, {}};
  return {};
}

std::uint64_t bytes_of(const EmitPlan& plan) {
  std::uint64_t bytes = 0;
  for_each_file(plan, [&](const OutputFile& file) { bytes += file.size; });
  return bytes;
}

}  // namespace libswap
