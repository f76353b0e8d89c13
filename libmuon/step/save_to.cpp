// The state goes to another disk, and the engine with it.
#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

Result<> Engine::Impl::can_save_to(const libswap::SwapDirectory& other) const {
  if (broken) return *broken;
  if (const auto held = other.current(); held || &other == directory)
    return Error{Code::usage,
                 compose("{} holds a store already: the state can only be saved to a new one",
                         other.path().string()),
                 "name a directory that is empty or does not exist, on another disk"};
  return {};
}

// All of it is copied before anything of the engine changes.
Result<> Engine::Impl::move_to(libswap::SwapDirectory& other) {
  EBB_TRY_ASSIGN(const auto fresh, other.fresh(ranks));
  auto made = make_store(other, fresh, store->superblock().store);
  Result<> copied = made ? Result<>() : made.error();
  if (made)
    copied = together(ranks, "copying its state",
                      [&]() -> Result<> { return sweep->cache().copy_to(**made); });
  if (!copied) {
    made = std::shared_ptr<libswap::Store>();
    // The first failure is the news; nothing was committed there.
    static_cast<void>(other.discard(ranks, fresh.uuid, {}).has_value());
    return copied;
  }
  sweep->cache().move_to(**made);
  store = *std::move(made);
  stats.snapshots_put_off += snapshots->put_off();
  watch_snapshots();
  resumed_step = 0;
  store_path = fresh.path;
  directory = &other;
  adopt_due = true;
  return {};
}

Result<> Engine::save_to(libswap::SwapDirectory& other) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("save_to"));
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY(self.agree_all(self.can_save_to(other), "looking for another disk"));
  // A generation that the disk did not keep is no reason to stay there; ranks that are gone are
  // missed at once.
  static_cast<void>(self.settle_snapshot(libswap::Snapshots::Mode::wait).has_value());
  EBB_TRY(self.move_to(other));
  if (self.stopped) return {};
  EBB_TRY_ASSIGN(const bool begun, self.begin_snapshot());
  EBB_CHECK(begun);
  EBB_TRY(self.wait_for_snapshot());
  return {};
}

}  // namespace ebb::libmuon
