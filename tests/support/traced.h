// Which files and folders a child process syncs, and what it writes and renames between, seen from
// outside with ptrace: the one witness of calls whose absence changes nothing but what a power loss
// leaves.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ebb::test_support {

struct SystemCall {
  std::string name;  // fsync, fdatasync, pwrite64, rename, renameat2, unlink, mkdir
  std::string path;  // of the descriptor, or the first name
  bool operator==(const SystemCall&) const = default;
};

struct SystemCalls {
  std::string why_not;  // not empty: this process may trace none
  int exit = -1;        // the child's
  std::vector<SystemCall> calls;

  // The first call at or after `from` of that name whose path ends so; calls.size(): none.
  std::size_t find(std::string_view name, std::string_view path_end, std::size_t from = 0) const;
};

// Runs `work` in a forked child and ends it with what it returns. Every thread of it is traced.
SystemCalls trace(const std::function<int()>& work);

}  // namespace ebb::test_support
