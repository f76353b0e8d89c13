#include "ebb/libswap/sys/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

std::uint64_t address_of(const AlignedBuffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.bytes().data());
}

TEST(AlignedBuffer, IsZeroedAlignedAndAsLongAsAsked) {
  for (const std::uint64_t size : {1ull, 4096ull, 100'000ull, 2ull << 20, (5ull << 20) + 1}) {
    const AlignedBuffer buffer = value_of(AlignedBuffer::allocate(size));
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(buffer.bytes().size(), size);
    EXPECT_EQ(address_of(buffer) % (size >= (2u << 20) ? 2u << 20 : 4096u), 0u);
    EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST(AlignedBuffer, OfNoBytesIsEmpty) {
  EXPECT_EQ(value_of(AlignedBuffer::allocate(0)).size(), 0u);
  EXPECT_TRUE(AlignedBuffer().bytes().empty());
}

TEST(AlignedBuffer, TooBigIsAnErrorNotACrash) {
  for (const std::uint64_t size :
       {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 60}) {
    const auto refused = AlignedBuffer::allocate(size);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::no_memory);
  }
}

TEST(AlignedBuffer, MovesItsMemory) {
  AlignedBuffer first = value_of(AlignedBuffer::allocate(4096));
  first.bytes()[5] = std::byte{42};
  const std::uint64_t address = address_of(first);
  AlignedBuffer second = value_of(AlignedBuffer::allocate(8192));
  second = std::move(first);
  EXPECT_EQ(address_of(second), address);
  EXPECT_EQ(second.bytes()[5], std::byte{42});
  EXPECT_EQ(second.size(), 4096u);
}

TEST(AlignedBuffer, DoesNotExistInAForkedChildAndIsNotUnmappedThere) {
  // Between two other mappings, so that nothing of the runtime's moves into the hole.
  const auto neighbour = [] {
    return ::mmap(nullptr, 65'536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  };
  ASSERT_NE(neighbour(), MAP_FAILED);
  AlignedBuffer buffer = value_of(AlignedBuffer::allocate(65'536));
  std::byte* data = buffer.bytes().data();
  ASSERT_NE(neighbour(), MAP_FAILED);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    unsigned char page = 0;
    const bool absent = ::mincore(data, 4096, &page) != 0 && errno == ENOMEM;
    // Something else may take the place; the buffer's end must leave it alone.
    void* other =
        ::mmap(data, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    buffer = AlignedBuffer();
    const bool kept = other == data && ::mincore(data, 4096, &page) == 0;
    ::_exit((absent ? 0 : 1) + (kept ? 0 : 2));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ebb::libswap
