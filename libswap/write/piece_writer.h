// PieceWriter: writes files of a plan with several workers, piece by piece.
//
// The workers take the pieces in order, but for those that an earlier attempt has made. Each has
// two buffers (or one, PieceMaker says): while one is being written through the I/O queue it fills
// the other, so that reading, computing and writing go on at a time, across files too. What a piece
// is and where it goes says a PieceMaker. The calling thread is the committer: it collects what was
// written, makes it durable in batches and reports.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

#include "ebb/formats/catalog/range_crcs.h"
#include "ebb/libswap/write/output_files.h"
#include "ebb/libswap/write/piece_maker.h"

namespace ebb::libswap {

struct PieceWork {
  std::uint32_t workers = 1;
  std::uint64_t piece_bytes = 0;
  Priority priority = Priority::background;
  const std::atomic<bool>* cancel = nullptr;  // polled once per piece
  Creation creation = Creation::create_new;   // of the files
  Reservation reservation = Reservation::whole_files;
  std::chrono::milliseconds commit_interval{1000};
  // Pieces that are durable already: they are not made, and count as neither written nor durable.
  // REQUIRES: each once, of these files, and what fits them.
  std::span<const FinishedPiece> finished = {};
  formats::BlockCrcs* blocks = nullptr;  // borrowed; those of files written before are complete
  // On the calling thread, each piece once, when it is written.
  std::function<void(const Piece& piece, const Shares& shares)> written = nullptr;
  // On the calling thread, each piece once, when its data is durable; an error ends everything.
  std::function<Result<>(std::span<const FinishedPiece> pieces)> durable = nullptr;
};

// Blocks until all of the files below `directory`, which holds their subdirectories, are durable;
// then they are closed. After an error or Code::cancelled nothing of it runs any more; what was
// written before a cancellation becomes durable first.
// Memory: PieceMaker::buffers() for each worker, and what the maker takes. REQUIRES: the maker is
// of these files, and new.
Result<> write_pieces(IoQueue& io, PieceMaker& maker, std::span<const OutputFile> files,
                      const fs::path& directory, const PieceWork& work);

Error stopped_on_request();  // Code::cancelled

}  // namespace ebb::libswap
