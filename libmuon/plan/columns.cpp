#include "ebb/libmuon/plan/columns.h"

#include <algorithm>

#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kAlign = 64;  // each column begins on a cache line

constexpr std::array kFp32 = {DType::f32};
constexpr std::array kFp32OrHalves = {DType::f32, DType::u16};
constexpr std::array kFp32OrLess = {DType::f32, DType::bf16, DType::i8};

struct Row {
  std::string_view state;
  TileKind kind;
  std::span<const DType> dtypes;  // that work; the first is the default
};
// States are numbered as they first occur, and are at home with the tiles of their first row.
constexpr Row kRows[] = {
    {"master", TileKind::masters, kFp32OrHalves},
    {"momentum_buffer", TileKind::momentum, kFp32OrLess},
    {"master", TileKind::adam, kFp32OrHalves},
    {"exp_avg", TileKind::adam, kFp32},
    {"exp_avg_sq", TileKind::adam, kFp32},
    {"second_momentum_buffer", TileKind::moments, kFp32},
};

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i)
    all += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return all;
}

// What may be said of a state. Masters alone may be left to the trainer.
std::string choices_of(const Row& row) {
  std::vector<std::string> names;
  for (const DType dtype : row.dtypes) names.emplace_back(name_of(dtype));
  if (row.state == "master") names.emplace_back("none");
  return listed(names);
}

bool is_choice(const Row& row, std::optional<DType> asked) {
  if (!asked) return row.state == "master";
  return std::ranges::find(row.dtypes, *asked) != row.dtypes.end();
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
    const auto found = dtypes.find(name);
    const auto asked = found == dtypes.end() ? row.dtypes.front() : found->second;
    if (!is_choice(row, asked))
      return Error{Code::unsupported,
                   compose("{} cannot be kept as {}", name, asked ? name_of(*asked) : "none"),
                   compose("{} may be {}", name, choices_of(row))};
    columns.dtypes_.push_back(asked.value_or(DType::f32));
    columns.homes_.push_back(row.kind);
    if (!asked) columns.masters_ = Masters::bound;
  }
  if (columns.dtypes_[kMaster] == DType::u16) columns.masters_ = Masters::halves;
  columns.names_ = state_names();
  std::array<std::vector<Column>, kTileKinds.size()> scales;
  for (const Row& row : kRows) {
    const std::uint32_t state = *state_number(row.state);
    if (state == kMaster && columns.masters() == Masters::bound) continue;
    Column column{state, columns.dtypes_[state]};
    if (column.dtype == DType::i8) {
      column.encoding = formats::native::block_encoding(kInt8Block);
      scales[index_of(row.kind)].push_back(
          {static_cast<std::uint32_t>(columns.names_.size()), DType::f32, kInt8Block});
      columns.names_.push_back(compose("{}{}", row.state, formats::native::kScaleOf));
    }
    if (column.dtype == DType::u16) column.encoding = formats::native::kLowHalves;
    columns.by_kind_[index_of(row.kind)].push_back(column);
  }
  for (const TileKind kind : kTileKinds)
    std::ranges::copy(scales[index_of(kind)], std::back_inserter(columns.by_kind_[index_of(kind)]));
  columns.add_bound();
  return columns;
}

void Columns::add_bound() {
  std::vector<Column>& columns = by_kind_[index_of(TileKind::bound)];
  if (masters() == Masters::bound) columns.push_back({kMaster});
  if (!in_halves()) return;
  columns.push_back({static_cast<std::uint32_t>(names_.size()), DType::bf16});
  names_.emplace_back(formats::native::kHighHalves);
}

std::uint64_t Columns::block(TileKind kind) const {
  std::uint64_t most = 1;
  for (const Column& column : of(kind)) most = std::max(most, column.block);
  return most;
}

std::optional<std::size_t> Columns::find(TileKind kind, std::uint32_t state) const {
  const auto found = std::ranges::find(of(kind), state, &Column::state);
  if (found == of(kind).end()) return std::nullopt;
  return static_cast<std::size_t>(found - of(kind).begin());
}

std::uint64_t Columns::capacity(TileKind kind, std::uint64_t tile_bytes) const {
  // Those are cut alike, so that both have the same elements.
  if (kind == TileKind::masters && masters() == Masters::bound) kind = TileKind::bound;
  if (of(kind).empty()) return 0;
  std::uint64_t least = kAlign;
  for (const Column& column : of(kind))
    least = std::min<std::uint64_t>(least, bytes_of(column.dtype));
  // Elements: no column of a multiple needs padding, none of it has a part of a block.
  const std::uint64_t whole = std::max(kAlign / least, block(kind));
  std::uint64_t bytes = 0;  // of so many
  for (const Column& column : of(kind)) bytes += whole / column.block * bytes_of(column.dtype);
  return tile_bytes / bytes * whole;
}

std::vector<std::uint64_t> Columns::offsets(TileKind kind, std::uint64_t count,
                                            std::uint64_t blocks) const {
  std::vector<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const Column& column : of(kind)) {
    offsets.push_back(formats::align_up(end, kAlign));
    end = offsets.back() + (column.in_blocks() ? blocks : count) * bytes_of(column.dtype);
  }
  return offsets;
}

}  // namespace ebb::libmuon
