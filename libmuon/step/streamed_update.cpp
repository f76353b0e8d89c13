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
              panels_of(of.model, of.item), of.scratch.bytes(), of.non_finite) {}

StreamedUpdate::~StreamedUpdate() {
  for (const Event& event : busy_) pool_.help_until(event);
}

StreamedMatrix::Panels StreamedUpdate::panels_of(const ModelSpec& model, const Item& item) {
  const Block matrix = batches_of(model, item).front().matrix;
  const Streaming& streaming = item.streaming;
  if (streaming.wide()) return {matrix.rows(), streaming.strip_cols, false};
  return {streaming.panel() / matrix.cols, matrix.cols, true};
}

std::uint64_t StreamedUpdate::scratch_bytes(const ModelSpec& model, const Item& item) {
  return StreamedMatrix::scratch_bytes(muon_spec(model, item.parts.front().param),
                                       panels_of(model, item));
}

Buffer StreamedUpdate::room_of_strip(std::uint32_t pass) const {
  return room_.sub(pass % Streaming::kStripsAtOnce * streaming_.panel(),
                   streaming_.strip_made_in(pass, elems_).elems);
}

std::vector<StreamedUpdate::Piece> StreamedUpdate::in_ring(const FlatRange& elems) const {
  std::vector<Piece> all;
  for (std::uint64_t first = elems.first; first < end_of(elems);) {
    const std::uint64_t at = first % streaming_.ring();
    const std::uint64_t count = std::min(end_of(elems) - first, streaming_.ring() - at);
    all.push_back({{first, count}, room_.sub(at, count)});
    first += count;
  }
  return all;
}

std::vector<StreamedUpdate::Piece> StreamedUpdate::pieces(const Visit& visit,
                                                          const FlatRange& elems) const {
  if (!in_strips(visit)) return in_ring(elems);
  const Slice strip = streaming_.strip_made_in(pass_of(visit), elems_);
  const Buffer room = room_of_strip(pass_of(visit));
  const FlatRange here = strip.local(elems);
  std::vector<Piece> all;
  std::uint64_t at = here.first;
  strip.for_runs(here, [&](FlatRange run) {
    all.push_back({run, room.sub(at, run.count)});
    at += run.count;
  });
  return all;
}

// A tile may hold more than the ring. What comes in strips has a room for each strip.
std::vector<FlatRange> StreamedUpdate::turns(const Visit& visit, const FlatRange& elems) const {
  if (in_strips(visit)) return {elems};
  std::vector<FlatRange> all;
  for (std::uint64_t first = elems.first; first < end_of(elems); first += streaming_.ring())
    all.push_back({first, std::min(streaming_.ring(), end_of(elems) - first)});
  return all;
}

void StreamedUpdate::settle(const Visit& visit, const FlatRange& elems) {
  if (in_strips(visit)) {
    pool_.help_until(event_of_strip(pass_of(visit)));
    return;
  }
  const std::uint64_t last = (end_of(elems) - 1) / streaming_.panel();
  for (std::uint64_t panel = elems.first / streaming_.panel(); panel <= last; ++panel)
    pool_.help_until(event_of(panel));
}

void StreamedUpdate::made(const Visit& visit, const FlatRange& elems) {
  if (visit.pass == 1) {
    for (const Piece& piece : in_ring(elems)) matrix_.add_squares(piece.update.floats());
    return;
  }
  if (in_strips(visit)) return made_of_strip(visit.pass, elems);
  for (std::uint64_t panel = elems.first / streaming_.panel();
       panel * streaming_.panel() < end_of(elems); ++panel) {
    const std::uint64_t first = panel * streaming_.panel();
    const std::uint64_t end = std::min(elems_, first + streaming_.panel());
    if (end > end_of(elems)) break;
    const Buffer update = in_ring({first, end - first}).front().update;
    event_of(panel) =
        pool_.begin(matrix_.next({visit.pass, first == 0, end == elems_, update.floats()}));
  }
}

// Behind the strip's last element. The matrix knows no strips: its passes are over all of them.
void StreamedUpdate::made_of_strip(std::uint32_t pass, const FlatRange& elems) {
  const Slice strip = streaming_.strip_made_in(pass, elems_);
  if (end_of(strip.local(elems)) < strip.elems) return;
  const std::uint32_t number = streaming_.strip(pass);
  event_of_strip(pass) =
      pool_.begin(matrix_.next({2 + streaming_.rounds_before(pass), number == 0,
                                number + 1 == streaming_.strips(), room_of_strip(pass).floats()}));
}

}  // namespace ebb::libmuon
