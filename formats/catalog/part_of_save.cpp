#include "ebb/formats/catalog/part_of_save.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t end_of_digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

std::uint32_t number_at(std::string_view text, std::size_t at) {
  return parse_number<std::uint32_t>(text.substr(at, end_of_digits(text, at) - at)).value_or(0);
}

std::uint32_t number_behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  return at == std::string_view::npos ? 0 : number_at(text, at + word.size());
}

// "rank0", "rank_0", "mp_rank_00_001": every number of a rank becomes a star.
std::optional<PartName> of_ranks(std::string_view file) {
  constexpr std::string_view kRank = "rank";
  PartName name;
  std::size_t copied = 0;
  for (std::size_t at = file.find(kRank); at != std::string_view::npos;
       at = file.find(kRank, at + 1)) {
    std::size_t first = at + kRank.size();
    if (first < file.size() && (file[first] == '_' || file[first] == '-')) ++first;
    std::size_t end = end_of_digits(file, first);
    if (end == first) continue;
    while (end + 1 < file.size() && file[end] == '_' && is_digit(file[end + 1]))
      end = end_of_digits(file, end + 1);
    name.family.append(file.substr(copied, first - copied)).append("*");
    name.number.append(name.number.empty() ? "" : ", ").append(file.substr(first, end - first));
    copied = end;
  }
  if (copied == 0) return std::nullopt;
  name.family += file.substr(copied);
  name.parts = number_behind(file, "world_size_");
  return name;
}

// "model-00001-of-00003.safetensors"
std::optional<PartName> of_a_cut(std::string_view file) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = file.find(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  std::size_t first = of;
  while (first > 0 && is_digit(file[first - 1])) --first;
  const std::size_t total = of + kOf.size();
  if (first == of || end_of_digits(file, total) == total) return std::nullopt;
  return PartName{std::string(file.substr(0, first)).append("*").append(file.substr(of)),
                  std::string(file.substr(first, of - first)), number_at(file, total)};
}

// "consolidated.00.pth", as Meta cuts a model for tensor parallelism.
std::optional<PartName> of_consolidated(std::string_view file) {
  constexpr std::string_view kBegin = "consolidated.";
  const std::size_t end = end_of_digits(file, kBegin.size());
  if (!file.starts_with(kBegin) || end == kBegin.size() || file.substr(end) != ".pth")
    return std::nullopt;
  return PartName{"consolidated.*.pth",
                  std::string(file.substr(kBegin.size(), end - kBegin.size()))};
}

// An entry of argparse.Namespace, whichever way the pickle kept it.
std::uint64_t argument(const Value& arguments, std::string_view key) {
  const Value* found = arguments.find(key);
  for (std::size_t i = 0; found == nullptr && i < arguments.items.size(); ++i)
    found = arguments.items[i].find(key);
  return found != nullptr && found->kind == Value::Kind::integer && found->integer > 0
             ? static_cast<std::uint64_t>(found->integer)
             : 1;
}

}  // namespace

std::optional<PartName> part_name(std::string_view file) {
  if (auto name = of_ranks(file)) return name;
  if (auto name = of_a_cut(file)) return name;
  return of_consolidated(file);
}

std::string family_text(const PartName& name, std::size_t files) {
  std::string out = compose("{}, {}", printable(name.family), plural(files, "file"));
  if (name.parts > files) out += compose(" of {}", name.parts);
  return out;
}

std::optional<PartOfSave> part_by_name(std::string_view name, std::span<const std::string> beside) {
  const auto mine = part_name(name);
  if (!mine) return std::nullopt;
  std::uint32_t files = 1;
  const std::string* other = nullptr;
  for (const std::string& file : beside) {
    const auto its = part_name(file);
    if (!its || its->family != mine->family || its->number == mine->number) continue;
    ++files;
    if (other == nullptr) other = &file;
  }
  if (mine->parts > 1)
    return PartOfSave{mine->parts, compose("its name says that there are {}", mine->parts)};
  if (mine->parts == 1) return std::nullopt;
  if (other != nullptr) return PartOfSave{files, printable(*other) + " lies beside it"};
  if (mine->number.find_first_not_of("0_, ") == std::string::npos) return std::nullopt;
  return PartOfSave{0, "its name says that it is not the first"};
}

std::optional<PartOfSave> part_by_arguments(const Catalog& catalog) {
  constexpr std::string_view kSizes[] = {"tensor_model_parallel_size",
                                         "pipeline_model_parallel_size"};
  const auto arguments = std::ranges::find(catalog.values, "args", &ValueEntry::key);
  if (catalog.format != "torch" || arguments == catalog.values.end()) return std::nullopt;
  PartOfSave part{1, "its arguments say"};
  for (const std::string_view size : kSizes) {
    const std::uint64_t ranks = argument(arguments->value, size);
    if (ranks < 2 || ranks > 1u << 14) continue;
    part.why += compose("{} {} {}", part.parts > 1 ? "," : "", size, ranks);
    part.parts *= static_cast<std::uint32_t>(ranks);
  }
  return part.parts > 1 ? std::optional(part) : std::nullopt;
}

}  // namespace ebb::formats
