#include "ebb/libmuon/step/streamed_update.h"

#include <algorithm>

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;

namespace {

std::uint64_t end_of(const FlatRange& range) { return range.first + range.count; }

}  // namespace

StreamedUpdate::StreamedUpdate(const Of& of, libswap::Pool& pool)
    : streaming_(of.item.streaming),
      elems_(of.item.elems),
      room_(of.room.as(DType::f32).sub(0, streaming_.ring())),
      pool_(pool),
      matrix_(muon_spec(of.model, of.item.parts.front().param), of.bf16,
              streaming_.panel() / cols_of(of.model, of.item), cols_of(of.model, of.item),
              of.scratch.bytes(), of.spoiled) {}

StreamedUpdate::~StreamedUpdate() {
  for (const Event& event : busy_) pool_.help_until(event);
}

std::uint64_t StreamedUpdate::cols_of(const ModelSpec& model, const Item& item) {
  return batches_of(model, item).front().matrix.cols;
}

std::uint64_t StreamedUpdate::scratch_bytes(const ModelSpec& model, const Item& item) {
  const std::uint64_t cols = cols_of(model, item);
  return StreamedMatrix::scratch_bytes(muon_spec(model, item.parts.front().param),
                                       item.streaming.panel() / cols, cols);
}

std::vector<StreamedUpdate::Piece> StreamedUpdate::pieces(const FlatRange& elems) const {
  std::vector<Piece> all;
  for (std::uint64_t first = elems.first; first < end_of(elems);) {
    const std::uint64_t at = first % streaming_.ring();
    const std::uint64_t count = std::min(end_of(elems) - first, streaming_.ring() - at);
    all.push_back({{first, count}, room_.sub(at, count)});
    first += count;
  }
  return all;
}

void StreamedUpdate::settle(const FlatRange& elems) {
  const std::uint64_t last = (end_of(elems) - 1) / streaming_.panel();
  for (std::uint64_t panel = elems.first / streaming_.panel(); panel <= last; ++panel)
    pool_.help_until(event_of(panel));
}

void StreamedUpdate::made(std::uint32_t pass, const FlatRange& elems) {
  if (pass == 1) {
    for (const Piece& piece : pieces(elems)) matrix_.add_squares(piece.update.floats());
    return;
  }
  for (std::uint64_t panel = elems.first / streaming_.panel();
       panel * streaming_.panel() < end_of(elems); ++panel) {
    const std::uint64_t first = panel * streaming_.panel();
    const std::uint64_t end = std::min(elems_, first + streaming_.panel());
    if (end > end_of(elems)) break;
    const Buffer update = pieces({first, end - first}).front().update;
    event_of(panel) = pool_.begin(matrix_.next({pass, first == 0, end == elems_, update.floats()}));
  }
}

}  // namespace ebb::libmuon
