// Whether files are still what they were: who reads a checkpoint for minutes, and knows no
// checksums of it, asks at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

// The files below a path as they are on the disk now.
class FileStates {
 public:
  static Result<FileStates> below(const fs::path& path);

  // The same for two only if no file was changed between them: names, sizes, times of the last
  // change and inodes of all files, hashed.
  std::string identity() const;
  // The first of these files that was changed, replaced or removed since; nullopt: none was. Names
  // as in the tree of the path; those that were not there are not asked for.
  std::optional<std::string> changed_since(std::span<const std::string> names) const;

 private:
  struct State {
    std::string name;
    std::uint64_t size = 0, inode = 0;
    std::int64_t written = 0, written_ns = 0;  // the time of the last write
    std::int64_t touched = 0, touched_ns = 0;  // and of the last change of whatever kind
    bool operator==(const State&) const = default;
  };
  static std::optional<State> state_of(const fs::path& file, std::string name);
  fs::path path_of(const std::string& name) const { return single_ ? root_ : root_ / name; }

  fs::path root_;
  bool single_ = false;
  std::vector<State> states_;  // by name
};

}  // namespace ebb::libswap
