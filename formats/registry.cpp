#include "ebb/formats/registry.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "ebb/formats/beside.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/dcp/format.h"
#include "ebb/formats/deepspeed/format.h"
#include "ebb/formats/folders/format.h"
#include "ebb/formats/foreign_files.h"
#include "ebb/formats/hdf5/format.h"
#include "ebb/formats/megatron/format.h"
#include "ebb/formats/native/format.h"
#include "ebb/formats/safetensors/format.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/torch_checkpointing/format.h"
#include "ebb/formats/torch_save/format.h"

namespace ebb::formats {
namespace {

template <typename F>
constinit const F kThe{};

// The first one whose detect() says yes reads a checkpoint.
constinit const auto kFormats = std::to_array<const Format*>({
    &kThe<native::Format>,
    &kThe<megatron::TorchDistFormat>,  // DCP underneath, so before it
    &kThe<megatron::RankFormat>,
    &kThe<megatron::FsdpFormat>,
    &kThe<folders::ReadFormat<folders::kLightningsFolder>>,  // DCP, too, with one file more
    &kThe<dcp::Format>,
    &kThe<deepspeed::UniversalFormat>,  // has model files of the same names, so before the next
    &kThe<deepspeed::Format>,
    &kThe<torch_checkpointing::Format>,  // by what metadata.pkl says
    &kThe<folders::FsdpFormat>,          // these hold models in the formats below, and more
    &kThe<folders::ReadFormat<folders::kOlmosFolder>>,
    &kThe<folders::ReadFormat<folders::kAutoModelsFolder>>,
    &kThe<folders::ReadFormat<folders::kPrimeRlsFolder>>,
    &kThe<folders::ReadFormat<folders::kNanochatsFolder>>,
    &kThe<folders::TrainerFormat>,
    &kThe<folders::AccelerateFormat>,
    &kThe<safetensors::Format>,
    &kThe<hdf5::Format>,
    &kThe<torch_save::Format>,  // last: other formats are made of such files
});

class UnknownFormat final : public Format {
 public:
  constexpr UnknownFormat() : Format({}) {}
  bool detect(const SourceTree&) const override { return false; }
  Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree>) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be read"};
  }
  Result<EmitPlan> emit(const EmitRequest&) const override {
    return Error{Code::unsupported, "a format that is not registered cannot be written"};
  }
  ResumeRules resume_rules() const override { return {}; }
};

}  // namespace

std::span<const Format* const> registered_formats() { return kFormats; }

std::vector<const Format*> written_formats() {
  std::vector<const Format*> written;
  for (const Format* format : registered_formats())
    if (format->traits().written == Written::yes) written.push_back(format);
  return written;
}

const Format* format_named(std::string_view name) {
  for (const Format* format : registered_formats())
    if (format->name() == name) return format;
  return nullptr;
}

const Format* format_at(const SourceTree& tree) {
  for (const Format* format : registered_formats())
    if (format->detect(tree)) return format;
  return nullptr;
}

const Format& format_of(const Catalog& catalog) {
  const Format* format = format_named(catalog.format);
  return format != nullptr ? *format : kThe<UnknownFormat>;
}

namespace {

Result<std::unique_ptr<Checkpoint>> described(const std::shared_ptr<const SourceTree>& tree) {
  const Format* format = format_at(*tree);
  if (format == nullptr)
    return Error{Code::unsupported,
                 compose("{}: no checkpoint of a known format is here", tree->root()),
                 "ckpt-inspect --help lists the formats this version reads"};
  auto checkpoint = format->describe(tree);
  if (checkpoint || checkpoint.error().code != Code::layout) return checkpoint;
  // Parts that do not fit together are damage here; elsewhere it is what was asked for that does
  // not fit.
  Error error = std::move(checkpoint).error();
  error.code = Code::corrupt;
  return error;
}

// Nothing beside what was read goes unnamed.
std::unique_ptr<Checkpoint> with_surroundings(std::unique_ptr<Checkpoint> read,
                                              const std::shared_ptr<const SourceTree>& tree) {
  std::vector<BesideEntry> beside = what_lies_beside(tree, read->catalog());
  if (beside.empty()) return read;
  Catalog catalog = read->catalog();
  std::ranges::move(beside, std::back_inserter(catalog.beside));
  return with_catalog(std::move(read), std::move(catalog));
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree) {
  auto checkpoint = described(tree);
  if (checkpoint) return with_surroundings(*std::move(checkpoint), tree);
  if (std::optional<Error> foreign = foreign_file_in(*tree)) return std::move(*foreign);
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> describe_with_holes(std::shared_ptr<const SourceTree> tree) {
  const Format* format = format_at(*tree);
  if (format == nullptr) return described(tree);
  return format->describe_with_holes(std::move(tree));
}

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree,
                                             const PartsSaid& said) {
  EBB_TRY_ASSIGN(std::unique_ptr<Checkpoint> stored, describe(std::move(tree)));
  const bool parts = !said.models.empty() || !said.optimizers.empty();
  if (!parts && !said.names) return stored;
  Catalog catalog = stored->catalog();
  const bool state_dict = format_of(catalog).traits().keys == Keys::state_dict;
  if (parts && !state_dict)
    return Error{Code::usage,
                 "--model and --optimizer say what the parts of a torch state dict (dcp, torch) "
                 "are; this is " +
                     catalog.format,
                 "leave them out"};
  PartsSaid whole = said;
  if (whole.models.empty() && format_of(catalog).traits().parts == Parts::files)
    for (const StateDictPlace& model : catalog.parts.models) whole.models.push_back(text_of(model));
  if (state_dict)
    EBB_TRY(name_contents(catalog, whole, values_in_tensors(*stored)));
  else
    EBB_TRY(say_names(catalog, *said.names));
  return with_catalog(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
