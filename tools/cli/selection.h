// Which tensors of a checkpoint a command speaks of: globs over key and name, state, rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::tools {

struct Selection {
  std::vector<std::string> include;  // globs; none: everything
  std::vector<std::string> exclude;  // globs
  std::vector<std::string> states;   // none: every state
  std::optional<Rank> rank;          // only what this rank wrote something of

  bool wants(const TensorEntry& tensor) const;
  // Where one rank's are asked for, none: of whom it is is not told.
  bool wants(const formats::UnreadEntry& unread) const;
};

// In natural order of name, then state. Fails (Code::usage) when a filter leaves nothing.
Result<std::vector<const TensorEntry*>> select(const Catalog& catalog, const Selection& selection);

// 0 where a damaged catalog gives a shape that does not fit 64 bits.
std::uint64_t elements_of(const TensorEntry& tensor);
std::uint64_t bytes_of(const TensorEntry& tensor);  // decoded
// Of what the selected rank wrote of it, where one is selected.
std::uint64_t elements_of(const TensorEntry& tensor, const Selection& selection);
std::uint64_t bytes_of(const TensorEntry& tensor, const Selection& selection);

}  // namespace ebb::tools
