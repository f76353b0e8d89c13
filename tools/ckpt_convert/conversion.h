// ckpt-convert's work: what goes where, whether it may, the writing, and the proof that what was
// written is what was read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/state_dict/parts.h"
#include "ebb/libswap/tree/file_states.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tools/cli/console.h"
#include "tools/cli/selection.h"

namespace ebb::tools::convert {

enum class Dropping : std::uint8_t { refused, allowed };
// Of a job that goes on from weights without the states that lie beside them.
enum class NewOptimizer : std::uint8_t { refused, allowed };

enum class Quantized : std::uint8_t { kept, made_plain };

struct Request {
  std::string source;
  std::string destination;
  formats::PartsSaid parts;                     // of the source, where it is a state dict
  std::vector<std::vector<std::string>> names;  // an optimizer's parameters in order, by group
  std::optional<std::string> like;              // a checkpoint that shows the order
  const formats::Format* format = nullptr;
  std::uint32_t world = 1;
  std::optional<Policy> policy;             // unset: as the format does
  std::optional<std::uint64_t> file_bytes;  // where the format cuts files
  std::optional<formats::Compression> compression;
  formats::Taking taking = formats::Taking::content;
  formats::NamesByOrder names_by_order = formats::NamesByOrder::refused;
  Quantized quantized = Quantized::kept;
  Selection selection;
  formats::Edits edits;
  Dropping dropping = Dropping::refused;
  NewOptimizer new_optimizer = NewOptimizer::refused;
  libswap::Overwrite overwrite = libswap::Overwrite::refuse;
  std::uint32_t workers = 0;  // 0: two for each core
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;
};

struct Prepared {
  std::unique_ptr<Checkpoint> source;
  libswap::FileStates files_before;  // of the source, from before it was described
  formats::Conversion conversion;
  std::string replaces;  // what -f takes the place of, in a few words; "" for nothing

  std::uint64_t bytes() const;  // of all files to be written
  std::size_t files() const;
};

// Whether the result is one file and the destination is called like a file of the format.
libswap::Becomes becomes(const Request& request, const EmitPlan& plan);

// Reads the source's description, proves that it is complete and plans the result. Refuses
// destinations that are the source, lie inside it or hold it, destinations that may be replaced but
// are no checkpoint, and content that the format cannot hold unless dropping is allowed.
Result<Prepared> prepare(const Request& request);

struct Outcome {
  libswap::WriteReport report;
  // Tensors that are not stored and that readers will derive with other values: allowed by
  // Dropping alone. One line each.
  std::vector<std::string> rounded_otherwise;
};

// Writes, reads back and publishes. Everything that the plan does not drop is compared with the
// source before the destination gets its name: tensors by fingerprint, values, groups and step
// counters as they are. Code::busy where a file of the source was changed meanwhile.
Result<Outcome> carry_out(Console& console, const Request& request, const Prepared& prepared);

}  // namespace ebb::tools::convert
