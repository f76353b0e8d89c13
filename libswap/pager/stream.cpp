#include "ebb/libswap/pager/stream.h"

#include <algorithm>
#include <utility>

namespace ebb::libswap {

Stream::Stream(TileCache& cache, std::vector<TileVisit> schedule, Repeats repeats)
    : cache_(cache),
      reader_(cache.new_reader()),
      schedule_(std::move(schedule)),
      repeats_(repeats),
      position_(schedule_.size()) {
  for (const TileVisit& visit : schedule_)
    if (visit.tile != kNoTile && visit.use != TileCache::Use::create &&
        !cache_.resident(visit.tile))
      reads_.push_back(visit.tile);
}

void Stream::begin(std::uint64_t step, std::vector<std::uint64_t> left_out) {
  EBB_CHECK(ended());
  position_ = 0;
  step_ = step;
  left_out_ = std::move(left_out);
  pass_over_what_is_left_out();
  const bool warm = cache_.prefetch_for(reader_) && repeats_ == Repeats::yes;
  if (!warm) cache_.prefetch(reads_);
  if (!left_out_.empty()) cache_.do_without(left_out_);
  if (repeats_ == Repeats::yes) cache_.prefetch(reads_);  // the next round's
}

Result<Stream::Lease> Stream::take() {
  EBB_CHECK(!ended());
  const TileVisit& visit = schedule_[position_];
  Buffer buffer;
  if (visit.tile != kNoTile) {
    EBB_TRY_ASSIGN(buffer, cache_.acquire(visit.tile, visit.use));
  }
  const Lease lease{position_++, visit.tile, buffer};
  pass_over_what_is_left_out();
  return lease;
}

void Stream::pass_over_what_is_left_out() {
  while (!ended() && std::ranges::binary_search(left_out_, schedule_[position_].tile)) ++position_;
}

void Stream::give_back(const Lease& lease, const Event& done) {
  if (lease.tile == kNoTile) return;
  if (schedule_[lease.position].use == TileCache::Use::read)
    cache_.release(lease.tile, done);
  else
    cache_.release_changed(lease.tile, step_, done);
}

}  // namespace ebb::libswap
