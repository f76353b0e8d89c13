#include "tests/replay/case.h"

#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::replay {
namespace {

constexpr std::uint64_t kMostJson = 16u << 20;  // bytes
constexpr std::uint64_t kMostSteps = 100'000;

// Python writes NaN and Infinity, which are no JSON: they become null.
std::string without_infinities(std::string_view text) {
  std::string clean;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    std::size_t skip = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (!quoted && text.substr(i).starts_with(word)) skip = word.size();
    clean += skip > 0 ? "null" : std::string(1, text[i]);
    i += skip > 0 ? skip - 1 : 0;
  }
  return clean;
}

Result<std::shared_ptr<const Value>> read_json(const formats::SourceTree& tree) {
  EBB_TRY_ASSIGN(const auto file, tree.open("case.json"));
  EBB_TRY_ASSIGN(const ByteVector bytes, formats::read_bytes(*file, 0, file->size(), kMostJson));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EBB_TRY_ASSIGN(Value value, formats::read_value_json(without_infinities(text), "case.json"));
  if (value.kind != Value::Kind::dict) return Error{Code::usage, "case.json is no object"};
  return std::make_shared<const Value>(std::move(value));
}

Result<DType> dtype_of(const Fields& file) {
  EBB_TRY_ASSIGN(const std::string text, file.text("param_dtype"));
  if (text == "F32") return DType::f32;
  if (text == "BF16") return DType::bf16;
  return file.wrong("param_dtype", compose("is {}; F32 and BF16 are known", text));
}

}  // namespace

Result<Case> Case::open(const std::filesystem::path& folder) {
  EBB_TRY_ASSIGN(const auto tree, libswap::open_tree(folder));
  for (const char* name : {"case.json", "trace.safetensors"})
    if (tree->find(name) == nullptr)
      return Error{Code::usage, compose("{} has no {}", folder.string(), name)};
  Case one;
  EBB_TRY_ASSIGN(one.json_, read_json(*tree));
  EBB_TRY_ASSIGN(auto trace, libswap::open_tree(folder / "trace.safetensors"));
  EBB_TRY_ASSIGN(one.trace_, formats::describe(std::move(trace)));
  const Fields file = one.file();
  EBB_TRY_ASSIGN(one.name_, file.text("case"));
  EBB_TRY_ASSIGN(const auto extents, file.counts("shape"));
  one.shape_ = Shape(extents.begin(), extents.end());
  EBB_TRY_ASSIGN(one.dtype_, dtype_of(file));
  EBB_TRY_ASSIGN(one.grad_of_step_, file.counts("grad_of_step"));
  if (one.grad_of_step_.empty() || one.grad_of_step_.size() > kMostSteps)
    return file.wrong("grad_of_step", compose("has {} steps", one.grad_of_step_.size()));
  EBB_TRY_ASSIGN(const Shape first, one.shape_of("param.0"));
  if (first != one.shape_)
    return file.wrong("shape", compose("is {}, param.0 of the trace has {}",
                                       formats::to_string(one.shape_), formats::to_string(first)));
  return one;
}

const TensorEntry* Case::find(std::string_view tensor) const {
  const auto& all = trace_->catalog().tensors;
  const auto found = std::ranges::find(all, tensor, &TensorEntry::name);
  return found == all.end() ? nullptr : &*found;
}

Result<const TensorEntry*> Case::need(std::string_view tensor) const {
  const TensorEntry* const found = find(tensor);
  if (found == nullptr) return Error{Code::usage, compose("trace.safetensors has no {}", tensor)};
  if (!formats::is_floating(found->dtype))
    return Error{Code::usage,
                 compose("trace.safetensors: {} is {}", tensor, name_of(found->dtype))};
  return found;
}

Result<Shape> Case::shape_of(std::string_view tensor) const {
  EBB_TRY_ASSIGN(const TensorEntry* const entry, need(tensor));
  return entry->shape;
}

Result<std::vector<float>> Case::tensor(std::string_view name) const {
  EBB_TRY_ASSIGN(const TensorEntry* const entry, need(name));
  std::vector<float> values(formats::volume(entry->shape));
  ByteVector stored(values.size() * bytes_of(entry->dtype));
  EBB_TRY(formats::read_box(*trace_, *entry, formats::whole(entry->shape), stored));
  formats::cast_floats(entry->dtype, stored, DType::f32, std::as_writable_bytes(std::span(values)));
  return values;
}

Result<std::vector<float>> Case::gradient(std::uint64_t step) const {
  const std::string name = compose("grad.{}", grad_of_step_[step - 1]);
  EBB_TRY_ASSIGN(const Shape shape, shape_of(name));
  if (shape != shape_)
    return Error{Code::usage, compose("trace.safetensors: {} has shape {}, the parameter {}", name,
                                      formats::to_string(shape), formats::to_string(shape_))};
  return tensor(name);
}

std::vector<std::uint64_t> Case::steps_of(std::string_view run, std::string_view what) const {
  const std::string prefix = compose("{}.{}.", run, what);
  std::vector<std::uint64_t> steps;
  for (const TensorEntry& tensor : trace_->catalog().tensors) {
    if (!tensor.name.starts_with(prefix)) continue;
    const auto step =
        formats::parse_number<std::uint64_t>(std::string_view(tensor.name).substr(prefix.size()));
    if (step) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace ebb::replay
