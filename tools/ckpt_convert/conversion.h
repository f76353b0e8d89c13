// ckpt-convert's work: what goes where, whether it may, the writing, and the proof that what was
// written is what was read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/catalog/catalog.h"
#include "libswap/transfer/convert.h"
#include "libswap/transfer/write_checkpoint.h"
#include "tools/cli/console.h"
#include "tools/cli/selection.h"

namespace tools::convert {

enum class Dropping : std::uint8_t { refused, allowed };

struct Request {
  std::string source;
  std::string destination;
  const formats::Format* format = nullptr;
  std::uint32_t world = 1;
  formats::Policy policy = formats::Policy::rows;
  Selection selection;
  Dropping dropping = Dropping::refused;
  libswap::Overwrite overwrite = libswap::Overwrite::refuse;
};

struct Prepared {
  std::unique_ptr<formats::Checkpoint> source;
  libswap::Conversion conversion;

  std::uint64_t bytes() const;  // of all files to be written
  std::size_t files() const;
};

// Reads the source's description, proves that it is complete and plans the result. Refuses
// destinations that are the source, lie inside it or hold it, and content that the format cannot
// hold unless dropping is allowed.
formats::Result<Prepared> prepare(const Request& request);

// Writes, reads back and publishes. Every tensor is compared with the source by fingerprint before
// the destination gets its name.
formats::Result<libswap::WriteReport> carry_out(Console& console, const Request& request,
                                                const Prepared& prepared);

}  // namespace tools::convert
