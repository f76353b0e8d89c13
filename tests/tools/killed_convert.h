// A ckpt-convert that is killed when some of its work is durable.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/support/program.h"

namespace ebb {

// Whether the journal of a conversion into `folder` has more than its first record, which names
// the plan. A record (libswap/publish/attempt.h) is its length, a checksum, and as many bytes.
inline bool journal_has_segments(const std::string& folder) {
  constexpr std::uint64_t kHead = 8;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find(".ebb-journal-") == std::string::npos) continue;
    std::uint32_t first = 0;
    std::ifstream journal(entry.path(), std::ios::binary);
    journal.read(reinterpret_cast<char*>(&first), sizeof(first));
    std::error_code gone;
    const std::uint64_t size = std::filesystem::file_size(entry.path(), gone);
    return journal && !gone && size > kHead + first;
  }
  return false;
}

// False: `command`, which makes folder/out, was done before its first journal.
inline bool killed_once_journaled(const std::vector<std::string>& command,
                                  const std::string& folder) {
  test_support::RunningProgram run("ckpt-convert", command);
  while (!journal_has_segments(folder) && !std::filesystem::exists(folder + "/out"))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  run.signal(SIGKILL);
  return run.wait().exit != 0 && !std::filesystem::exists(folder + "/out");
}

}  // namespace ebb
