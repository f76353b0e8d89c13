#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/folders/file_names.h"
#include "ebb/formats/folders/folder_keys.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/state_dict/small_tensors.h"

namespace ebb::formats {
namespace {

constexpr const char* kCopyAgain =
    "copy all files of one save again, or use the checkpoint before this one";

// A Trainer's scheduler counts its steps, fewer where one was skipped.
std::vector<Error> later_scheduler(const SourceTree& tree, const Catalog& catalog) {
  const Value* epoch = value_at(catalog, {"scheduler.last_epoch"});
  if (epoch == nullptr || epoch->kind != Value::Kind::integer || epoch->integer <= *catalog.step)
    return {};
  Error error{Code::corrupt,
              compose("{}/{} has counted {} steps, but {} only {}: files of two saves", tree.root(),
                      folders::kSchedulerFile, epoch->integer, folders::kStateFile, *catalog.step),
              kCopyAgain};
  error.place.file = folders::kSchedulerFile;
  return {std::move(error)};
}

}  // namespace

// People copy files. An optimizer may have counted fewer steps than its job, which skips those that
// overflow and may have begun with new states; more of them are another save's.
std::vector<Error> folder_problems(FolderKind kind, const std::shared_ptr<const SourceTree>& tree,
                                   const Catalog& catalog) {
  const auto& at = catalog.parts.step;
  if (!catalog.step || at.empty() || !is_word(at.front(), folders::kTrainerStateKey)) return {};
  auto whole = describe_folder(kind, tree);
  if (!whole) return {std::move(whole).error()};
  for (const TensorEntry& tensor : (*whole)->catalog().tensors) {
    const auto steps = steps_counted(**whole, tensor);  // an error is told by who reads everything
    if (!steps || !*steps || **steps <= static_cast<double>(*catalog.step)) continue;
    const std::string& file = (*whole)->catalog().files.at(tensor.chunks.front().file).name;
    Error error{Code::corrupt,
                compose("{}/{}: {} has counted {} steps, but {}.json only {}: files of two saves",
                        tree->root(), file, label_of(tensor), to_json(Value::of_real(**steps)),
                        folders::kTrainerStateKey, *catalog.step),
                kCopyAgain};
    error.place.file = file;
    error.place.tensor = tensor.name;
    return {std::move(error)};
  }
  return later_scheduler(*tree, (*whole)->catalog());
}

}  // namespace ebb::formats
