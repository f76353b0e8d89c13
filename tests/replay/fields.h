// A JSON object's fields by name; what is missing or of another kind is named with its path.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/result.h"

namespace ebb::replay {

class Fields {
 public:
  // Borrows the value. `where` begins messages: "case.json: runs.fp32".
  Fields(const Value& value, std::string where) : value_(&value), where_(std::move(where)) {}

  // null counts as missing.
  bool has(std::string_view name) const;
  Result<Fields> object(std::string_view name) const;
  Result<double> number(std::string_view name) const;
  Result<std::uint64_t> count(std::string_view name) const;
  Result<bool> flag(std::string_view name) const;
  Result<std::string> text(std::string_view name) const;
  Result<std::vector<double>> numbers(std::string_view name) const;
  Result<std::vector<std::uint64_t>> counts(std::string_view name) const;
  Result<std::vector<std::vector<double>>> rows(std::string_view name) const;
  // In the file's order.
  std::vector<std::string> names() const;

  Error wrong(std::string_view name, std::string_view why) const;

 private:
  Result<const Value*> find(std::string_view name) const;
  std::string path(std::string_view name) const;

  const Value* value_;
  std::string where_;
};

}  // namespace ebb::replay
