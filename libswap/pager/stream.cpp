#include "ebb/libswap/pager/stream.h"

#include <utility>

namespace ebb::libswap {

Stream::Stream(TileCache& cache, std::vector<TileVisit> schedule, Repeats repeats)
    : cache_(cache),
      reader_(cache.new_reader()),
      schedule_(std::move(schedule)),
      repeats_(repeats),
      position_(schedule_.size()) {
  for (const TileVisit& visit : schedule_)
    if (visit.use != TileCache::Use::create && !cache_.resident(visit.tile))
      reads_.push_back(visit.tile);
}

void Stream::begin(std::uint64_t step) {
  EBB_CHECK(ended());
  position_ = 0;
  step_ = step;
  const bool warm = cache_.prefetch_for(reader_) && repeats_ == Repeats::yes;
  if (!warm) cache_.prefetch(reads_);
  if (repeats_ == Repeats::yes) cache_.prefetch(reads_);  // the next round's
}

Result<Stream::Lease> Stream::take() {
  EBB_CHECK(!ended());
  const TileVisit& visit = schedule_[position_];
  EBB_TRY_ASSIGN(const Buffer buffer, cache_.acquire(visit.tile, visit.use));
  return Lease{position_++, visit.tile, buffer};
}

void Stream::give_back(const Lease& lease, const Event& done) {
  if (schedule_[lease.position].use == TileCache::Use::read)
    cache_.release(lease.tile, done);
  else
    cache_.release_changed(lease.tile, step_, done);
}

}  // namespace ebb::libswap
