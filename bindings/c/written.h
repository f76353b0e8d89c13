// Checkpoints that are written from C.
#pragma once

#include <string_view>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/write/write_checkpoint.h"

namespace ebb::c {

// `function`: that was called.
Result<const formats::Format*> format_of(const char* given, std::string_view function);

struct Written {
  const formats::Format& format;
  std::uint32_t world = 1;  // ranks that it is for
  std::string_view path;    // must not be there
  std::uint32_t workers = 0;
  bool whole = false;  // what the format cannot hold is refused, and not left out
};
Result<libswap::WriteReport> write(libswap::IoQueue& io, const Checkpoint& content,
                                   const Written& to);

// For errors of a destination, whose hints are ckpt-convert's.
Result<libswap::WriteReport> hinted(Result<libswap::WriteReport> report);

}  // namespace ebb::c
