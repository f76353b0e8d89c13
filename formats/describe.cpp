#include "ebb/formats/describe.h"

#include <algorithm>
#include <iterator>

#include "ebb/formats/beside.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/foreign_files.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"

namespace ebb::formats {

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
