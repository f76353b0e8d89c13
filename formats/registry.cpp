#include "formats/registry.h"

#include <string>

namespace formats {

std::span<const Format> registered_formats() { return {}; }

const Format* format_named(std::string_view name) {
  for (const Format& format : registered_formats())
    if (format.name == name) return &format;
  return nullptr;
}

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree) {
  for (const Format& format : registered_formats())
    if (format.detect(*tree)) return format.describe(tree);
  return Error{Code::unsupported,
               std::string(tree->root()) + ": no checkpoint of a known format is here",
               "ckpt-inspect --help lists the formats this version reads"};
}

}  // namespace formats
