// Columns: the states that an engine keeps, as a table of what each is called, what it is stored
// as and which kind of tile holds it. What lays, fills, pages, transfers and describes state goes
// by the table: another state is another row. Values, the same on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"

namespace ebb::libmuon {

// What a tile is of. Their numbers are in digests of what is stored.
enum class TileKind : std::uint8_t {
  momentum,  // of matrices
  masters,   // of matrices
  adam,      // all that AdamW keeps of its elements
  moments,   // second ones of matrices
  bound,     // masters, or their halves, that the trainer has: a snapshot writes them, no step
};
inline constexpr std::array kTileKinds = {TileKind::momentum, TileKind::masters, TileKind::adam,
                                          TileKind::moments, TileKind::bound};
constexpr std::size_t index_of(TileKind kind) { return static_cast<std::size_t>(kind); }

// Names that other formats know, by number: those of Manifest::states.
std::vector<std::string> state_names();
std::optional<std::uint32_t> state_number(std::string_view name);
// Code::usage: there is no such state; `given` is what was said of it ("a tier").
Result<std::uint32_t> state_named(std::string_view name, std::string_view given);
// What weights are handed out from, and initial ones become.
inline constexpr std::uint32_t kMaster = 0;

struct Column {
  std::uint32_t state = 0;  // of Columns::names()
  DType dtype = DType::f32;
  std::uint64_t block = 1;     // so many of the parameter's elements to one of the column's
  std::uint32_t encoding = 0;  // of segments of it (Segment::encoding)

  bool in_blocks() const { return block > 1; }
};

// Momentum in int8: a scale for so many elements of the parameter, counted from its first. The same
// in all stores that an engine writes.
inline constexpr std::uint32_t kInt8Block = 256;

// By state name; nullopt: it is not kept, because the trainer has it.
using StateDTypes = std::map<std::string, std::optional<DType>, std::less<>>;

// Where masters lie: with the state; half with it and half with the trainer, as its weights in
// bf16; or with the trainer, as its weights in fp32.
enum class Masters : std::uint8_t { kept, halves, bound };

class Columns {
 public:
  // What is not named is fp32. Code::unsupported names the state, the dtype and those that work.
  // A state in i8 has its scales in a column of their own, behind the others of its tiles. What the
  // trainer has of masters is a column of TileKind::bound.
  static Result<Columns> make(const StateDTypes& dtypes);

  // Of all columns: state_names(), the scales of those in blocks, the high halves of masters.
  const std::vector<std::string>& names() const { return names_; }
  DType dtype(std::uint32_t state) const { return dtypes_[state]; }
  // Whether it is the masters, or has a half of them.
  bool of_masters(std::uint32_t state) const {
    return state == kMaster || (in_halves() && state + 1 == names_.size());
  }
  Masters masters() const { return masters_; }
  bool in_halves() const { return masters_ == Masters::halves; }
  // Whether the trainer's weights are masters, or halves of them.
  bool bound_masters() const { return masters_ != Masters::kept; }
  // The most elements that have one value of a column between them: a tile of that kind cuts
  // parameters at multiples of so many.
  std::uint64_t block(TileKind kind) const;
  // Those of such a tile: one behind the other in this order, and kernels' arguments.
  std::span<const Column> of(TileKind kind) const { return by_kind_[index_of(kind)]; }
  // Which of them keeps the state, if one does.
  std::optional<std::size_t> find(TileKind kind, std::uint32_t state) const;
  // The kind of tile that is at home where the state is said to be.
  TileKind home(std::uint32_t state) const { return homes_[state]; }

  // The most elements, each of all its columns, that such a tile holds: as many whole blocks. 0:
  // there are no such tiles. Of masters that the trainer has: what one would hold.
  std::uint64_t capacity(TileKind kind, std::uint64_t tile_bytes) const;
  // Where the columns of a tile of `count` elements in so many blocks begin in it; bytes.
  std::vector<std::uint64_t> offsets(TileKind kind, std::uint64_t count,
                                     std::uint64_t blocks) const;

 private:
  Columns() = default;
  void add_bound();

  std::vector<std::string> names_;
  Masters masters_ = Masters::kept;
  std::vector<DType> dtypes_;    // by state
  std::vector<TileKind> homes_;  // by state
  std::array<std::vector<Column>, kTileKinds.size()> by_kind_;
};

}  // namespace ebb::libmuon
