// --raw: what the files of a checkpoint hold, not interpreted, as one bounded tree with offsets.
// Works on damaged files as well: what cannot be taken apart is said and shown as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/zip/zip.h"

namespace ebb::tools::inspect {

struct RawNode {
  std::optional<std::uint64_t> at;  // byte of the file
  std::string text;                 // safe to print
  std::vector<RawNode> children;
  bool more = false;  // children were left out: the budget was spent
};

// How many nodes may still be made of one file.
class RawBudget {
 public:
  explicit RawBudget(std::uint64_t nodes) : left_(nodes) {}
  bool take() {
    if (left_ == 0) return false;
    --left_;
    return true;
  }

 private:
  std::uint64_t left_;
};

// A pickle that begins at byte `base` of its file: containers, constants, and of objects the name
// and the arguments that Python would have called it with. At most kRawDepth levels.
constexpr int kRawDepth = 48;
RawNode raw_pickle(const formats::PickleGraph& graph, std::uint64_t base, RawBudget& budget);

// "01ff", the first `limit` bytes and "..." where there are more.
std::string hex_of(std::string_view bytes, std::size_t limit);

// One file; `items` are the pieces of it that the catalog knows to be archives of their own.
struct RawItem {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::string label;
};
RawNode raw_file(const std::shared_ptr<const formats::ByteSource>& source,
                 const std::vector<RawItem>& items, RawBudget& budget);

}  // namespace ebb::tools::inspect
