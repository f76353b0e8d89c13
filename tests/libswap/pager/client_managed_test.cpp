// Client-managed tiles of a cache, in any order, with cuts and a disk that fails at times.
#include <gtest/gtest.h>

#include <random>

#include "tests/libswap/pager/pager_rig.h"

namespace ebb::test {
namespace {

// A client that draws what it does next, and knows what each of its tiles should hold.
class Client {
 public:
  static constexpr std::uint64_t kTiles = 12, kFrames = 5;

  Client(std::uint32_t seed, std::uint32_t threads)
      : random_(seed), rig_(kTiles, kTiles, {.threads = threads}) {
    rig_.close();
    rig_.budget = {.resident = 0, .frames = kFrames};
    rig_.open();
    for (std::uint64_t frame = 0; frame < kFrames; ++frame) free_.push_back(frame);
  }

  void do_something() {
    const std::uint64_t tile = draw(kTiles);
    switch (draw(8)) {
      case 0:
      case 1:
        change(tile);
        break;
      case 2:
        rig_.cache->write_out(tile);
        break;
      case 3:
        leave(tile);
        break;
      case 4:
      case 5:
        come(tile);
        break;
      case 6:
        cut();
        break;
      default:
        rig_.faults->add({.on = draw(2) == 0 ? libswap::FaultOn::read : libswap::FaultOn::write,
                          .at = draw(3),
                          .count = 1 + draw(6),
                          .path_part = ".data"});
    }
    expect_sound();
  }
  // All tiles are on the disk, and hold what they should.
  void end() {
    for (std::uint64_t tile = 0; tile < kTiles; ++tile) {
      leave(tile);
      come(tile);
      if (frames_[tile]) leave(tile);
      expect_sound();
    }
    EXPECT_EQ(free_.size(), kFrames);
  }
  std::uint64_t mended() const { return mended_; }  // times

 private:
  std::uint64_t draw(std::uint64_t of) { return random_() % of; }
  void expect_sound() { EXPECT_EQ(rig_.cache->broken_invariant(), std::nullopt); }
  std::uint64_t& value_in(std::uint64_t frame) {
    return *reinterpret_cast<std::uint64_t*>(rig_.cache->frames(frame, 1).data());
  }
  // What the disk refuses is tried again once it is well.
  void until(const std::function<bool()>& ready) {
    while (!rig_.cache->wait_for("a test", ready)) {
      expect_sound();
      mend();
    }
  }
  void mend() {
    rig_.faults->clear();
    rig_.cache->go_on();
    ++mended_;
  }

  void change(std::uint64_t tile) {
    if (!frames_[tile] && free_.empty()) return;
    if (!frames_[tile]) take_frame(tile);
    until([&] { return rig_.cache->may_change(tile); });
    value_in(*frames_[tile]) = values_[tile] = ++written_;
    rig_.cache->change(tile, *frames_[tile], step_);
  }
  void come(std::uint64_t tile) {
    if (frames_[tile] || free_.empty() || values_[tile] == 0) return;
    take_frame(tile);
    rig_.cache->admit(tile, *frames_[tile]);
    until([&] { return rig_.cache->arrived(tile); });
    if (!rig_.cache->why_unreadable(tile, 1)) {
      EXPECT_EQ(value_in(*frames_[tile]), values_[tile]);
      return;
    }
    mend();
    give_back(tile);
    come(tile);
  }
  void leave(std::uint64_t tile) {
    if (!frames_[tile]) return;
    rig_.cache->write_out(tile);
    until([&] { return rig_.cache->clean(tile); });
    give_back(tile);
  }
  // Beside what is still being written; the disk may refuse it.
  void cut() {
    while (!rig_.cache->settle()) mend();
    if (!rig_.store->can_cut()) return;
    rig_.store->cut(++step_);
    rig_.cache->begin_cut();
    expect_sound();
    Result<> prepared = rig_.cache->finish_cut();
    expect_sound();
    if (prepared) prepared = rig_.store->prepare(rig_.manifest());
    rig_.faults->clear();
    Alone alone;
    EXPECT_TRUE(rig_.store->agree(alone, prepared));
  }
  void take_frame(std::uint64_t tile) {
    frames_[tile] = free_.back();
    free_.pop_back();
  }
  void give_back(std::uint64_t tile) {
    rig_.cache->dismiss(tile);
    free_.push_back(*frames_[tile]);
    frames_[tile].reset();
  }

  std::mt19937 random_;
  Rig rig_;
  std::vector<std::uint64_t> free_;
  std::array<std::optional<std::uint64_t>, kTiles> frames_;
  std::array<std::uint64_t, kTiles> values_{};  // 0: nothing was ever written
  std::uint64_t written_ = 0, step_ = 0, mended_ = 0;
};

TEST(ClientManagedTiles, KeepWhatTheirClientChangedInAnyOrderOnADiskThatFails) {
  std::uint64_t mended = 0;
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    Client client(seed, 1 + seed % 3);
    for (int i = 0; i < 120 && !HasFailure(); ++i) client.do_something();
    client.end();
    ASSERT_FALSE(HasFailure());
    mended += client.mended();
  }
  EXPECT_GT(mended, 10u);
}

}  // namespace
}  // namespace ebb::test
