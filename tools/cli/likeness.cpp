#include "tools/cli/likeness.h"

#include <algorithm>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/describe.h"

namespace ebb::tools {

namespace {

constexpr std::size_t kMostHeads = 16;
constexpr std::uint64_t kHead = 1 * formats::MiB;  // a pickle or a header with the names lies there
constexpr std::size_t kNames = 64;                 // looked for

}  // namespace

Likeness::Likeness(std::string name, std::shared_ptr<const formats::SourceTree> damaged)
    : name_(std::move(name)), damaged_(std::move(damaged)) {
  if (const auto described = formats::describe(damaged_)) {
    shapes_ = shapes_of((*described)->catalog());
    return;
  }
  for (const auto& entry : damaged_->entries()) {
    if (heads_.size() == kMostHeads) break;
    const auto source = damaged_->open(entry.name);
    if (!source) continue;
    const std::uint64_t count = std::min((*source)->size(), kHead);
    const auto head = formats::read_bytes(**source, 0, count, kHead);
    if (head && formats::text_of(*head).find(".weight") != std::string_view::npos)
      heads_.emplace_back(formats::text_of(*head));
  }
}

bool Likeness::is_of_one_model(const std::string& name,
                               const std::shared_ptr<const formats::SourceTree>& other) const {
  if (shapes_.empty() && heads_.empty())
    return formats::without_numbers(name) == formats::without_numbers(name_);
  const auto described = formats::describe(other);
  if (!described) return false;
  const Shapes theirs = shapes_of((*described)->catalog());
  if (shapes_.empty()) return names_are_there(theirs) && files_are_as_large(*other);
  return std::ranges::all_of(shapes_, [&](const auto& mine) {
    const auto found = theirs.find(mine.first);
    return found != theirs.end() && found->second == mine.second;
  });
}

Likeness::Shapes Likeness::shapes_of(const Catalog& catalog) {
  Shapes shapes;
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state == "param" || tensor.state == "master")
      shapes.emplace(tensor.name, tensor.shape);
  return shapes;
}

// Names stand in pickles and headers as they are.
bool Likeness::names_are_there(const Shapes& other) const {
  const std::size_t stride = other.size() / kNames + 1;
  std::size_t number = 0;
  return !other.empty() && std::ranges::all_of(other, [&](const auto& param) {
    if (number++ % stride != 0) return true;
    return std::ranges::any_of(heads_, [&](const std::string& head) {
      return head.find(param.first) != std::string::npos;
    });
  });
}

// Shapes cannot be read any more, but those of another model make other files: most of those of one
// name must be as large. What is cut off or missing is the damage.
bool Likeness::files_are_as_large(const formats::SourceTree& other) const {
  std::size_t alike = 0;
  std::size_t different = 0;
  auto mine = damaged_->entries().begin();
  for (const auto& entry : other.entries()) {
    while (mine != damaged_->entries().end() && mine->name < entry.name) ++mine;
    if (mine == damaged_->entries().end()) break;
    if (mine->name != entry.name) continue;
    const std::uint64_t larger = std::max(mine->size, entry.size);
    const std::uint64_t smaller = std::min(mine->size, entry.size);
    ++(larger - smaller <= larger / 20 ? alike : different);
  }
  return alike >= different;
}

}  // namespace ebb::tools
