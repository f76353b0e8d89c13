#include "tools/ckpt_convert/read_back.h"

#include "ebb/formats/conversion/content_check.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/libswap/read/digest.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tools/cli/selection.h"
#include "tools/cli/text.h"

namespace ebb::tools::convert {

namespace {

constexpr std::string_view kWhatNow =
    "try again; if it happens again, the disk or the memory is at fault";

// Tensors the result must hold: all that have elements in the plan, and the ones that have none.
std::set<std::uint32_t> stored_tensors(const Catalog& content, const EmitPlan& plan) {
  std::set<std::uint32_t> elsewhere(plan.omitted.begin(), plan.omitted.end());
  for (const formats::Derived& derived : plan.derived) elsewhere.insert(derived.tensor);
  std::set<std::uint32_t> stored;
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i)
    if (elements_of(content.tensors[i]) == 0 && !elsewhere.contains(i)) stored.insert(i);
  for (const auto* files : {&plan.files, &plan.commit_files})
    for (const OutputFile& file : *files)
      for (const Fragment& fragment : file.fragments)
        if (const auto* data = std::get_if<TensorData>(&fragment.data)) stored.insert(data->tensor);
  return stored;
}

// Of `found` in the dtype of `wanted`.
Result<std::uint64_t> fingerprint_as(const Checkpoint& written, const TensorEntry& found,
                                     const TensorEntry& wanted) {
  if (found.dtype == wanted.dtype) return libswap::fingerprint_of(written, found);
  Catalog narrow;
  narrow.tensors.push_back(wanted);
  const auto number = static_cast<std::uint32_t>(&found - written.catalog().tensors.data());
  const formats::ContentView view(written, std::move(narrow), {{number}});
  return libswap::fingerprint_of(view, view.catalog().tensors.front());
}

Error stopped() {
  return {Code::cancelled, "stopped on request before anything was published",
          "the same command starts again"};
}

Result<> check_cancelled() {
  return stop_requested().load(std::memory_order_relaxed) ? Result<>(stopped()) : Result<>();
}

Error read_back_different(const TensorEntry& wanted) {
  return {Code::corrupt,
          compose("tensor '{}' ({}) was read back different; nothing was published",
                  printable(wanted.name), printable(wanted.state)),
          std::string(kWhatNow)};
}

// The target's rule for names, and nobody's fault: something else lies where this one went.
Error not_under_its_name(const TensorEntry& wanted, const Catalog& written) {
  return {Code::unsupported,
          compose("{} cannot hold tensor '{}' ({}) under that name: what was read back has none "
                  "that is called so; nothing was published",
                  written.format, printable(wanted.name), printable(wanted.state)),
          compose("-x '{}' leaves the parameter out, --states the state; --rename gives the "
                  "parameter another name",
                  printable(wanted.name))};
}

}  // namespace

ReadBack::ReadBack(const formats::Conversion& conversion, std::uint32_t workers)
    : conversion_(conversion), workers_(libswap::workers_or_default(workers)) {
  for (const TensorEntry& tensor : conversion.content->catalog().tensors)
    claimed_.insert(identity(tensor));
}

ReadBack::Identity ReadBack::identity(const TensorEntry& tensor) {
  return {tensor.name, tensor.state, tensor.dtype};
}

Result<> ReadBack::run(Console& console, const std::filesystem::path& directory,
                       std::span<const std::uint64_t> fingerprints) const {
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(directory));
  EBB_TRY_ASSIGN(auto written, formats::describe(std::move(tree)));
  // A state dict of which a part is left may not tell any more what its keys mean.
  if (formats::format_of(written->catalog()).traits().keys == formats::Keys::state_dict)
    written = formats::named_like(std::move(written), conversion_.content->catalog());
  EBB_TRY(prove_coverage(written->catalog()));
  const auto lost =
      formats::lost_content(conversion_.content->catalog(), conversion_.plan, written->catalog());
  if (!lost.empty())
    return Error{
        Code::state,  // ours to mend; the source is as sound as before
        compose(
            "{} in what was read back{}; nothing was published", lost.front(),
            (lost.size() == 1 ? "" : " (and " + plural(lost.size() - 1, "more such thing") + ")")),
        "this is a defect of the writer of " + written->catalog().format +
            "; please report it. -n --drop lists what it knows it cannot hold"};
  std::uint64_t bytes = 0;
  for (const TensorEntry& tensor : written->catalog().tensors) bytes += bytes_of(tensor);
  return compare_tensors({*written, console, "reading back", bytes}, fingerprints);
}

Result<> ReadBack::compare_tensors(const WatchedCheckpoint& written,
                                   std::span<const std::uint64_t> fingerprints) const {
  ByName written_tensors;
  for (const TensorEntry& tensor : written.catalog().tensors)
    written_tensors.emplace(tensor.name, &tensor);
  const Catalog& content = conversion_.content->catalog();
  const auto stored = stored_tensors(content, conversion_.plan);
  // Most are there under their own name and state: those are read together.
  std::vector<std::uint32_t> numbers;
  std::vector<libswap::TensorOf> exact;
  for (const std::uint32_t number : stored) {
    const TensorEntry& wanted = content.tensors[number];
    if (const TensorEntry* found = exactly(written_tensors, wanted)) {
      numbers.push_back(number);
      exact.push_back({&written, found});
      continue;
    }
    EBB_TRY(check_cancelled());
    EBB_TRY_ASSIGN(const Found found, find(written, written_tensors, wanted, fingerprints[number]));
    if (found == Found::nowhere) return not_under_its_name(wanted, written.catalog());
    if (found == Found::other_bytes) return read_back_different(wanted);
  }
  auto read = libswap::fingerprints_of(exact, workers_, &stop_requested());
  if (!read) return read.error().code == Code::cancelled ? stopped() : std::move(read).error();
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if ((*read)[i] != fingerprints[numbers[i]])
      return read_back_different(content.tensors[numbers[i]]);
  return {};
}

const TensorEntry* ReadBack::exactly(const ByName& tensors, const TensorEntry& wanted) {
  const auto [first, last] = tensors.equal_range(wanted.name);
  for (auto candidate = first; candidate != last; ++candidate)
    if (identity(*candidate->second) == identity(wanted) &&
        candidate->second->shape == wanted.shape)
      return candidate->second;
  return nullptr;
}

// Where the format has another word for the state, or holds it wider, a tensor that nobody else
// claims may be it.
Result<ReadBack::Found> ReadBack::find(const Checkpoint& written, const ByName& tensors,
                                       const TensorEntry& wanted, std::uint64_t fingerprint) const {
  Found result = Found::nowhere;
  const auto [first, last] = tensors.equal_range(wanted.name);
  for (auto candidate = first; candidate != last; ++candidate) {
    const TensorEntry& found = *candidate->second;
    if (found.shape != wanted.shape || !formats::is_widening(wanted.dtype, found.dtype)) continue;
    if (claimed_.contains(identity(found))) continue;
    EBB_TRY_ASSIGN(const std::uint64_t read, fingerprint_as(written, found, wanted));
    if (read == fingerprint) return Found::equal;
    result = Found::other_bytes;
  }
  return result;
}

Result<std::vector<std::string>> ReadBack::rounded_otherwise() const {
  std::vector<std::string> lines;
  const formats::ContentView& content = *conversion_.content;
  const auto& tensors = content.catalog().tensors;
  for (const auto& [number, from] : conversion_.plan.derived) {
    EBB_TRY(check_cancelled());
    EBB_TRY_ASSIGN(const std::uint64_t wanted, libswap::fingerprint_of(content, tensors[number]));
    EBB_TRY_ASSIGN(const std::uint64_t derived,
                   fingerprint_as(content, tensors[from], tensors[number]));
    if (wanted != derived)
      lines.push_back(compose("tensor '{}' ({}): {}, which stands for it, rounds to other values",
                              printable(tensors[number].name), printable(tensors[number].state),
                              label_of(tensors[from])));
  }
  return lines;
}

}  // namespace ebb::tools::convert
