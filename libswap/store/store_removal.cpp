#include "ebb/libswap/store/store_removal.h"

#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/survey.h"

namespace ebb::libswap {
namespace {

enum class Part : std::uint8_t { rank_folder, rank_file, foreign };

Result<Part> part_in_store(IoBackend& backend, const fs::path& path) {
  if (!formats::native::is_rank_directory(path.filename().string())) return Part::foreign;
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(path));
  return folder ? Part::rank_folder : Part::foreign;
}

Result<Part> part_in_rank(IoBackend& backend, const fs::path& path) {
  const std::string name = path.filename().string();
  if (name != formats::native::kMetaFile && name != formats::native::kLockFile &&
      !formats::native::is_data_file(name))
    return Part::foreign;
  EBB_TRY_ASSIGN(const bool file, backend.is_file(path));
  return file ? Part::rank_file : Part::foreign;
}

// A folder something else lies in, or was put into meanwhile, stays.
Result<> remove_if_empty(IoBackend& backend, const fs::path& folder) {
  EBB_TRY_ASSIGN(const auto left, backend.list(folder));
  return left.empty() ? backend.remove(folder) : Result<>();
}

}  // namespace

Result<bool> holds_only_a_store(IoBackend& backend, const fs::path& store) {
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(store));
  if (!folder) return false;
  EBB_TRY_ASSIGN(const auto ranks, backend.list(store));
  for (const std::string& rank : ranks) {
    EBB_TRY_ASSIGN(const Part part, part_in_store(backend, store / rank));
    if (part == Part::foreign) return false;
    EBB_TRY_ASSIGN(const auto files, backend.list(store / rank));
    for (const std::string& file : files) {
      EBB_TRY_ASSIGN(const Part inside, part_in_rank(backend, store / rank / file));
      if (inside == Part::foreign) return false;
    }
  }
  return true;
}

Result<> remove_store_files(IoBackend& backend, const fs::path& store) {
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(store));
  if (!folder) return {};
  EBB_TRY_ASSIGN(const auto ranks, backend.list(store));
  for (const std::string& rank : ranks) {
    EBB_TRY_ASSIGN(const Part part, part_in_store(backend, store / rank));
    if (part == Part::foreign) continue;
    EBB_TRY_ASSIGN(const auto files, backend.list(store / rank));
    for (const std::string& file : files) {
      EBB_TRY_ASSIGN(const Part inside, part_in_rank(backend, store / rank / file));
      if (inside == Part::rank_file) EBB_TRY(backend.remove(store / rank / file));
    }
    EBB_TRY(remove_if_empty(backend, store / rank));
  }
  return remove_if_empty(backend, store);
}

}  // namespace ebb::libswap
