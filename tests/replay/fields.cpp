#include "tests/replay/fields.h"

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/compose.h"

namespace ebb::replay {
namespace {

using Kind = Value::Kind;

std::optional<std::vector<double>> numbers_in(const Value& value) {
  if (value.kind != Kind::list) return std::nullopt;
  std::vector<double> all;
  for (const Value& item : value.items) {
    const auto number = formats::number_in(item);
    if (!number) return std::nullopt;
    all.push_back(*number);
  }
  return all;
}

}  // namespace

std::string Fields::path(std::string_view name) const {
  return compose("{}{}{}", where_, where_.ends_with(": ") ? "" : ".", name);
}

Error Fields::wrong(std::string_view name, std::string_view why) const {
  return {Code::usage, compose("{} {}", path(name), why)};
}

bool Fields::has(std::string_view name) const {
  const Value* const found = value_->find(name);
  return found != nullptr && found->kind != Kind::none;
}

Result<const Value*> Fields::find(std::string_view name) const {
  if (!has(name)) return wrong(name, "is missing");
  return value_->find(name);
}

Result<Fields> Fields::object(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  if (found->kind != Kind::dict) return wrong(name, "is no object");
  return Fields(*found, path(name));
}

Result<double> Fields::number(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  const auto number = formats::number_in(*found);
  if (!number) return wrong(name, "is no number");
  return *number;
}

Result<std::uint64_t> Fields::count(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  if (found->kind != Kind::integer || found->integer < 0) return wrong(name, "is no whole number");
  return static_cast<std::uint64_t>(found->integer);
}

Result<bool> Fields::flag(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  if (found->kind != Kind::boolean) return wrong(name, "is neither true nor false");
  return found->integer != 0;
}

Result<std::string> Fields::text(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  if (found->kind != Kind::string) return wrong(name, "is no text");
  return found->text;
}

Result<std::vector<double>> Fields::numbers(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  auto all = numbers_in(*found);
  if (!all) return wrong(name, "is no list of numbers");
  return *std::move(all);
}

Result<std::vector<std::uint64_t>> Fields::counts(std::string_view name) const {
  EBB_TRY_ASSIGN(const std::vector<double> all, numbers(name));
  std::vector<std::uint64_t> counts;
  for (const double number : all) {
    if (!(number >= 0 && number < 1e15) ||
        number != static_cast<double>(static_cast<std::uint64_t>(number)))
      return wrong(name, "is no list of whole numbers");
    counts.push_back(static_cast<std::uint64_t>(number));
  }
  return counts;
}

Result<std::vector<std::vector<double>>> Fields::rows(std::string_view name) const {
  EBB_TRY_ASSIGN(const Value* const found, find(name));
  std::vector<std::vector<double>> all;
  for (const Value& item : found->items) {
    auto row = numbers_in(item);
    if (!row) return wrong(name, "is no list of lists of numbers");
    all.push_back(*std::move(row));
  }
  if (found->kind != Kind::list) return wrong(name, "is no list");
  return all;
}

std::vector<std::string> Fields::names() const {
  std::vector<std::string> all;
  for (const auto& [key, value] : value_->entries) all.push_back(key.text);
  return all;
}

}  // namespace ebb::replay
