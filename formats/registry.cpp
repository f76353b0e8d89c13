#include "ebb/formats/registry.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/dcp/format.h"
#include "ebb/formats/deepspeed/format.h"
#include "ebb/formats/hdf5/format.h"
#include "ebb/formats/megatron/format.h"
#include "ebb/formats/native/format.h"
#include "ebb/formats/safetensors/format.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/torch_save/format.h"

namespace ebb::formats {
namespace {

template <typename F>
constinit const F kThe{};

// The first one whose detect() says yes reads a checkpoint.
constinit const auto kFormats = std::to_array<const Format*>({
    &kThe<native::Format>,
    &kThe<megatron::TorchDistFormat>,  // DCP underneath, so before it
    &kThe<megatron::FsdpFormat>, &kThe<dcp::Format>,
    &kThe<deepspeed::UniversalFormat>,  // has model files of the same names, so before the next
    &kThe<deepspeed::Format>, &kThe<safetensors::Format>, &kThe<hdf5::Format>,
    &kThe<torch_save::Format>,  // last: other formats are made of such files
});

class UnknownFormat final : public Format {
 public:
  constexpr UnknownFormat() : Format({}) {}
  bool detect(const SourceTree&) const override { return false; }
  Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree>) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be read", {}};
  }
  Result<EmitPlan> emit(const EmitRequest&) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be written", {}};
  }
  ResumeRules resume_rules() const override { return {}; }
};

// The number at the end of a folder's name: a trainer's steps.
std::uint64_t step_of(std::string_view folder) {
  const std::size_t last = folder.find_last_not_of("0123456789");
  const std::string_view digits = folder.substr(last == std::string_view::npos ? 0 : last + 1);
  std::uint64_t step = 0;
  for (const char digit : digits.substr(0, 18))
    step = 10 * step + static_cast<unsigned>(digit - '0');
  return step;
}

// Where trainers put each save into a folder of its own, as torchtitan's step-<N>.
std::optional<Error> checkpoints_below(const SourceTree& tree) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> folders;
  for (const SourceTree::Entry& entry : tree.entries()) {
    const std::size_t slash = entry.name.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string_view file = std::string_view(entry.name).substr(slash + 1);
    if (file == ".metadata" || file == "model.safetensors.index.json")
      folders.push_back(entry.name.substr(0, slash));
  }
  if (folders.empty()) return std::nullopt;
  std::ranges::stable_sort(folders, {}, step_of);
  std::string list;
  const std::size_t first = folders.size() > kShown ? folders.size() - kShown : 0;
  for (std::size_t i = first; i < folders.size(); ++i)
    list += (list.empty() ? "" : ", ") + printable(folders[i]);
  const std::string root(tree.root());
  const std::string below = root.ends_with('/') ? root : root + "/";
  return Error{Code::usage,
               root + ": not a checkpoint itself; below it " +
                   (folders.size() == 1 ? "lies one: "
                                        : "lie " + std::to_string(folders.size()) + ": " +
                                              (first > 0 ? "..., " : "")) +
                   list,
               "name one; " + printable(below + folders.back()) + " is the newest"};
}

}  // namespace

std::span<const Format* const> registered_formats() { return kFormats; }

const Format* format_named(std::string_view name) {
  for (const Format* format : registered_formats())
    if (format->name() == name) return format;
  return nullptr;
}

const Format& format_of(const Catalog& catalog) {
  const Format* format = format_named(catalog.format);
  return format != nullptr ? *format : kThe<UnknownFormat>;
}

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree) {
  for (const Format* format : registered_formats()) {
    if (!format->detect(*tree)) continue;
    auto described = format->describe(tree);
    if (described || described.error().code != Code::layout) return described;
    // Parts that do not fit together are damage here; elsewhere it is what was asked for that does
    // not fit.
    Error error = std::move(described).error();
    error.code = Code::corrupt;
    return error;
  }
  if (auto several = checkpoints_below(*tree)) return std::move(*several);
  return Error{Code::unsupported,
               std::string(tree->root()) + ": no checkpoint of a known format is here",
               "ckpt-inspect --help lists the formats this version reads"};
}

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree,
                                             const PartsSaid& said) {
  EBB_TRY_ASSIGN(std::unique_ptr<Checkpoint> stored, describe(std::move(tree)));
  if (said.models.empty() && said.optimizers.empty()) return stored;
  if (format_of(stored->catalog()).traits().keys != Keys::state_dict)
    return Error{Code::usage,
                 "--model and --optimizer say what the parts of a torch state dict (dcp, torch) "
                 "are; this is " +
                     stored->catalog().format,
                 "leave them out"};
  Catalog catalog = stored->catalog();
  EBB_TRY(name_contents(catalog, said));
  return with_catalog(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
