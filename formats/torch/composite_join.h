// Tensors that are made of parts, of which ranks have saved pieces: what of each part of the whole
// lies in which piece.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/torch/composite.h"

namespace ebb::formats {

// A box of the whole, as it is stored.
struct CompositePiece {
  struct Stored {
    Chunk chunk;            // where the part's elements lie; its box is set here
    std::uint32_t crc = 0;  // of their record
  };
  Box box;
  TorchComposite made;
  std::vector<Stored> stored;  // of made.parts
};

class CompositeJoin {
 public:
  // `shape`: of the whole.
  explicit CompositeJoin(Shape shape) : shape_(std::move(shape)) {}

  // Why the piece cannot be joined with those before it; "" when it was. One that is there already
  // is a replica.
  std::string add(CompositePiece piece);
  // An entry for each part, without names. REQUIRES: there was a piece.
  std::vector<TensorEntry> take();

 private:
  struct Part {
    std::string name;
    TensorEntry entry;
    bool common = false;  // the same in each piece
    std::uint32_t crc = 0;
  };
  struct Seen {
    Box box;
    std::vector<std::uint32_t> crcs;  // of its parts
  };

  void begin(const CompositePiece& piece);
  std::string add_part(std::size_t number, const CompositePiece& piece);

  Shape shape_;
  Composite whole_;
  std::vector<Part> parts_;
  std::vector<Seen> pieces_;
};

}  // namespace ebb::formats
