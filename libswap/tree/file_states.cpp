#include "ebb/libswap/tree/file_states.h"

#include <sys/stat.h>

#include <algorithm>

#include "ebb/formats/core/sha256.h"
#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libswap {

std::optional<FileStates::State> FileStates::state_of(const fs::path& file, std::string name) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return State{std::move(name),        static_cast<std::uint64_t>(status.st_size),
               status.st_ino,          status.st_mtim.tv_sec,
               status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
               status.st_ctim.tv_nsec};
}

Result<FileStates> FileStates::below(const fs::path& path) {
  EBB_TRY_ASSIGN(const auto tree, open_tree(path));
  FileStates all;
  std::error_code failed;
  all.root_ = path;
  all.single_ = !fs::is_directory(path, failed);
  for (const auto& entry : tree->entries())
    if (auto state = state_of(all.path_of(entry.name), entry.name))
      all.states_.push_back(*std::move(state));
  return all;
}

std::string FileStates::identity() const {
  std::string all;
  for (const State& state : states_)
    all += compose("{} {} {} {} {} {}", state.name.size(), state.size, state.written,
                   state.written_ns, state.inode, state.name);
  return formats::sha256_hex(formats::view_of(all));
}

std::optional<std::string> FileStates::changed_since(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    const auto before = std::ranges::lower_bound(states_, name, {}, &State::name);
    if (before == states_.end() || before->name != name) continue;
    const fs::path file = path_of(name);
    if (state_of(file, name) != *before) return file.string();
  }
  return std::nullopt;
}

}  // namespace ebb::libswap
