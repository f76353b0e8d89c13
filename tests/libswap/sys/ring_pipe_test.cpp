// A ring between two processes, held against the bytes that went in; and what is no ring.
#include "ebb/libswap/sys/ring_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "ebb/formats/core/units.h"

namespace ebb::libswap {
namespace {

constexpr std::uint64_t kRing = 64 * formats::KiB;
constexpr std::size_t kCounts = 4096;  // before the rings
using Pipes = std::pair<std::unique_ptr<RingPipe>, std::unique_ptr<RingPipe>>;

Pipes both_ends(const Descriptor& memory) {
  auto maker = RingPipe::open(memory, RingPipe::End::maker);
  auto guest = RingPipe::open(memory, RingPipe::End::guest);
  EXPECT_TRUE(maker && guest);
  return {*std::move(maker), *std::move(guest)};
}

// One direction as a test sees it: random parts go in and come out, in order.
class Direction {
 public:
  Direction(BytePipe& from, BytePipe& to, std::uint64_t seed) : from_(from), to_(to), draw_(seed) {}
  void write_some() {
    std::vector<std::byte> bytes(size());
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(written_ + i);
    const auto count = from_.write(bytes);
    ASSERT_TRUE(count);
    EXPECT_EQ(*count, std::min<std::uint64_t>(bytes.size(), kRing - (written_ - read_)));
    written_ += *count;
  }
  void read_some() {
    std::vector<std::byte> bytes(size());
    const auto count = to_.read(bytes);
    ASSERT_TRUE(count);
    EXPECT_EQ(*count, std::min<std::uint64_t>(bytes.size(), written_ - read_));
    for (std::size_t i = 0; i < *count; ++i) ASSERT_EQ(bytes[i], byte_at(read_ + i)) << read_ + i;
    read_ += *count;
  }

 private:
  static std::byte byte_at(std::uint64_t at) { return static_cast<std::byte>(at * 7 + at / 251); }
  std::size_t size() { return draw_() % (draw_() % 4 == 0 ? 2 * kRing : 1000); }

  BytePipe& from_;
  BytePipe& to_;
  std::mt19937_64 draw_;
  std::uint64_t written_ = 0, read_ = 0;
};

TEST(RingPipe, GivesWhatWasWrittenInOrderBothWaysWhateverTheSizes) {
  const auto memory = RingPipe::make_memory(kRing);
  ASSERT_TRUE(memory);
  const auto [maker, guest] = both_ends(*memory);
  Direction there(*maker, *guest, 1), back(*guest, *maker, 2);
  std::mt19937_64 draw(3);
  for (int i = 0; i < 4000; ++i) switch (draw() % 4) {
      case 0:
        there.write_some();
        break;
      case 1:
        there.read_some();
        break;
      case 2:
        back.write_some();
        break;
      default:
        back.read_some();
    }
}

TEST(RingPipe, RefusesMemoryThatIsNoRing) {
  const auto ordinary = Descriptor(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(ordinary.get(), kCounts + 2 * kRing), 0);
  const auto small = Descriptor(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), 5000), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  for (const auto* memory : {&ordinary, &small}) {
    const auto pipe = RingPipe::open(*memory, RingPipe::End::guest);
    ASSERT_FALSE(pipe);
    EXPECT_EQ(pipe.error().code, Code::corrupt);
  }
}

// Whatever the other process writes there.
TEST(RingPipe, CountsThatCannotBeAreAnErrorAndLeadNowhere) {
  const auto memory = RingPipe::make_memory(kRing);
  ASSERT_TRUE(memory);
  const auto [maker, guest] = both_ends(*memory);
  void* const place =
      ::mmap(nullptr, kCounts, PROT_READ | PROT_WRITE, MAP_SHARED, memory->get(), 0);
  ASSERT_NE(place, MAP_FAILED);
  // Of each ring, how many bytes ever went in: more than it holds.
  for (const std::size_t ring : {0, 1})
    static_cast<std::uint64_t*>(place)[ring * 128 / sizeof(std::uint64_t)] = kRing + 1;
  std::vector<std::byte> bytes(100);
  for (RingPipe* const pipe : {maker.get(), guest.get()})
    for (const auto& answer : {pipe->write(bytes), pipe->read(bytes)}) {
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code, Code::corrupt);
    }
  ::munmap(place, kCounts);
}

}  // namespace
}  // namespace ebb::libswap
