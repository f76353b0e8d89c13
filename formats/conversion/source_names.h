// Every tensor's name and state where its format's own conventions mean nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/format.h"

namespace ebb::formats {

// Borrows the catalog.
class SourceNames {
 public:
  SourceNames(const Format& from, const Catalog& source)
      : source_(source), common_(from.common_names(source)) {}
  // Of content, which has them already.
  explicit SourceNames(const Catalog& content) : source_(content) {}

  const std::string& name(std::size_t i) const {
    return common_ ? common_->tensors[i].first : source_.tensors[i].name;
  }
  const std::string& state(std::size_t i) const {
    return common_ ? common_->tensors[i].second : source_.tensors[i].state;
  }
  const std::vector<GroupEntry>& groups() const {
    return common_ ? common_->groups : source_.groups;
  }

 private:
  const Catalog& source_;
  std::optional<CommonNames> common_;
};

}  // namespace ebb::formats
