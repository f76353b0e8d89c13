// Whole small files, through the same seam as everything else.
#pragma once

#include <filesystem>
#include <string>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::gpt {

// Code::limit above `most` bytes.
Result<std::string> read_text(libswap::IoQueue& io, const std::filesystem::path& path,
                              std::uint64_t most);

}  // namespace ebb::gpt
