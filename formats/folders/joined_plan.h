// Plans of parts, each made by its own format, as the plan of one folder. Internal to
// formats/folders.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats::folders {

// Some of a content's tensors and values as content of its own.
struct PartContent {
  Catalog catalog;
  std::vector<std::uint32_t> tensors;  // their numbers in the whole
};

class JoinedPlan {
 public:
  explicit JoinedPlan(const EmitRequest& whole) : whole_(whole) {}

  EmitPlan& plan() { return plan_; }
  // How the whole's layout cuts the part.
  Result<Layout> layout_of(const PartContent& part) const;
  // `called`: the name in the folder of a file of the part.
  void add(EmitPlan plan, const PartContent& part,
           const std::function<std::string(const std::string&)>& called);

 private:
  const EmitRequest& whole_;
  EmitPlan plan_;
};

}  // namespace ebb::formats::folders
