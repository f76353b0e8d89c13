#include "ebb/libmuon/plan/columns.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kAlign = 64;  // each column begins on a cache line

constexpr std::array kFp32 = {DType::f32};
constexpr std::array kFp32OrBf16 = {DType::f32, DType::bf16};

struct Row {
  std::string_view state;
  Visit visit;
  std::span<const DType> dtypes;  // that work; the first is the default
};
// States are numbered as they first occur, and are at home with the visits of their first row.
constexpr Row kRows[] = {
    {"master", Visit::finish, kFp32},    {"momentum_buffer", Visit::prepare, kFp32OrBf16},
    {"master", Visit::local, kFp32},     {"exp_avg", Visit::local, kFp32},
    {"exp_avg_sq", Visit::local, kFp32}, {"second_momentum_buffer", Visit::normalise, kFp32},
};

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i)
    all += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return all;
}

std::string listed(std::span<const DType> dtypes) {
  std::vector<std::string> names;
  for (const DType dtype : dtypes) names.emplace_back(name_of(dtype));
  return listed(names);
}

}  // namespace

std::vector<std::string> state_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows)
    if (std::ranges::find(names, row.state) == names.end()) names.emplace_back(row.state);
  return names;
}

std::optional<std::uint32_t> state_number(std::string_view name) {
  const std::vector<std::string> names = state_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - names.begin());
}

Result<std::uint32_t> state_named(std::string_view name, std::string_view given) {
  if (const auto number = state_number(name)) return *number;
  return Error{Code::usage, compose("{} is given for {}, which is no state", given, name),
               "states are " + listed(state_names())};
}

Result<Columns> Columns::make(const StateDTypes& dtypes) {
  for (const auto& [name, dtype] : dtypes) EBB_TRY(state_named(name, "a dtype"));
  Columns columns;
  for (const std::string& name : state_names()) {
    const Row& row = *std::ranges::find(kRows, name, &Row::state);
    const auto asked = dtypes.find(name);
    const DType dtype = asked == dtypes.end() ? row.dtypes.front() : asked->second;
    if (std::ranges::find(row.dtypes, dtype) == row.dtypes.end())
      return Error{Code::unsupported, compose("{} cannot be kept as {}", name, name_of(dtype)),
                   compose("{} may be {}", name, listed(row.dtypes))};
    columns.dtypes_.push_back(dtype);
    columns.homes_.push_back(row.visit);
  }
  for (const Row& row : kRows) {
    const std::uint32_t state = *state_number(row.state);
    columns.by_visit_[index_of(row.visit)].push_back({state, columns.dtypes_[state]});
  }
  return columns;
}

std::optional<std::size_t> Columns::find(Visit visit, std::uint32_t state) const {
  const auto found = std::ranges::find(of(visit), state, &Column::state);
  if (found == of(visit).end()) return std::nullopt;
  return static_cast<std::size_t>(found - of(visit).begin());
}

std::uint64_t Columns::capacity(Visit visit, std::uint64_t tile_bytes) const {
  std::uint64_t all = 0, least = kAlign;
  for (const Column& column : of(visit)) {
    all += bytes_of(column.dtype);
    least = std::min<std::uint64_t>(least, bytes_of(column.dtype));
  }
  const std::uint64_t aligned = kAlign / least;  // elements: no column of so many needs padding
  return tile_bytes / all / aligned * aligned;
}

std::vector<std::uint64_t> Columns::offsets(Visit visit, std::uint64_t count) const {
  std::vector<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const Column& column : of(visit)) {
    offsets.push_back(formats::align_up(end, kAlign));
    end = offsets.back() + count * bytes_of(column.dtype);
  }
  return offsets;
}

}  // namespace ebb::libmuon
