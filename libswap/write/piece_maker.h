// PieceMaker: what the bytes of the pieces of some files are, and where in their file they go.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/publish/finished_piece.h"
#include "ebb/libswap/write/pieces.h"

namespace ebb::libswap {

// Where one worker makes a piece.
struct Workplace {
  std::span<std::byte> bytes;  // PieceMaker::buffer_bytes(), and room up to a disk's block
  std::uint64_t granule = 1;   // offsets of writes are multiples of this
};

struct MadePiece {
  std::uint64_t offset = 0;    // in the file
  std::span<std::byte> bytes;  // of the workplace, or of `memory`; with room up to a disk's block
  FinishedPiece finished;
  std::shared_ptr<void> memory = nullptr;  // goes when the bytes are written
};

// Thread-safe, but for resume(). Pieces are asked for in order, by several workers at a time.
class PieceMaker {
 public:
  virtual ~PieceMaker() = default;
  virtual const Pieces& pieces() const = 0;
  virtual std::uint64_t buffer_bytes() const = 0;
  // How many of them a worker has: while one is written, it makes the next piece in another.
  virtual std::size_t buffers() const = 0;
  // Of an earlier attempt, durable: before anything is made. REQUIRES: what fits the piece.
  virtual void resume(const Piece& piece, const FinishedPiece& finished) = 0;
  virtual Result<MadePiece> make(const Piece& piece, const Workplace& place) = 0;
  // Of the file in bytes. REQUIRES: all of its pieces are made.
  virtual std::uint64_t size_of(std::uint32_t file) const = 0;
  // Whoever waits in make() for another piece fails, and long work ends early.
  virtual void stop() = 0;
};

}  // namespace ebb::libswap
