// A plugin's device: copies, events, a trainer's streams, memory, and what fails.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "ebb/libswap/sys/aligned_buffer.h"
#include "tests/libmuon/cuda/plugged.h"

namespace ebb {
namespace {

using libswap::Buffer;
using libswap::Event;
using libswap::EventSource;
using libswap::PluginDevice;
using test::Plugged;
using test::There;

std::vector<float> counted(std::size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// As it is on a machine that builds the plugin and has no GPU.
TEST(CudaPlugin, WithoutADriverSaysSoInOneLine) {
  const auto device = PluginDevice::open(EBB_CUDA_PLUGIN, 0);
  if (device) GTEST_SKIP() << "there is a GPU: " << (*device)->name();
  EXPECT_EQ(device.error().code, Code::unsupported);
  EXPECT_EQ(device.error().message,
            std::string(EBB_CUDA_PLUGIN) +
                ": there is no NVIDIA driver, or one that is too old for CUDA 13");
}

TEST(CudaStubDevice, ThatIsNotThereIsRefusedByName) {
  Plugged plugged;
  const auto refused = [&](std::int32_t index) {
    const auto device = PluginDevice::open(EBB_CUDA_STUB, index);
    return device ? std::string() : device.error().message;
  };
  const std::string plugin = EBB_CUDA_STUB;
  EXPECT_EQ(refused(1), "");
  EXPECT_EQ(refused(2), plugin + ": there is no device 2, there are 2");
  EXPECT_EQ(refused(-1), plugin + ": there is no device -1, there are 2");
  plugged.fail("devices");
  EXPECT_EQ(refused(0), plugin + ": the NVIDIA driver sees no device");
}

TEST(CudaStubDevice, NamesItselfAndGivesZeroedMemoryBack) {
  Plugged plugged;
  EXPECT_EQ(plugged.device().name(), "Stub 0");
  {
    const auto memory = plugged.device().allocate(1000);
    ASSERT_TRUE(memory);
    EXPECT_EQ(plugged.allocated(), 1000u);
    std::vector<std::byte> here(1000, std::byte{7});
    libswap::copy((*memory).buffer(), libswap::buffer_of(std::span(here)), {}).wait();
    EXPECT_TRUE(std::ranges::all_of(here, [](std::byte b) { return b == std::byte{0}; }));
  }
  EXPECT_EQ(plugged.allocated(), 0u);
}

// Each piece begins behind the event it is given, whatever of the device or of the host that is.
TEST(CudaDevice, CopiesBehindEventsOfOtherQueuesAndOfTheHost) {
  Plugged plugged(300);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto first = counted(5000, static_cast<float>(repeat));
    std::vector<float> source(5000, -1), back(5000, -1);
    auto a = plugged.device().allocate(20000), b = plugged.device().allocate(20000);
    ASSERT_TRUE(a && b);
    const Buffer there = (*a).buffer().as(DType::f32), beside = (*b).buffer().as(DType::f32);
    const EventSource filled;
    const Event up = libswap::copy(libswap::buffer_of(std::span(source)), there, filled.event());
    const Event inside = libswap::copy(there, beside, up);
    const Event down = libswap::copy(beside, libswap::buffer_of(std::span(back)), inside);
    std::ranges::copy(first, source.begin());
    EXPECT_FALSE(down.passed());
    filled.pass();
    down.wait();
    EXPECT_EQ(back, first);
  }
}

// In an order that a queue which waited on the host, or for a later record, would not keep.
TEST(CudaStubDevice, FollowsATrainersStreamAndIsFollowedByIt) {
  Plugged plugged(300);
  const auto stub = [&](auto* function, const char* name, auto... arguments) {
    return plugged.call(function, name, arguments...);
  };
  void* const stream = stub(ebb_stub_open_stream, "ebb_stub_open_stream");
  for (int repeat = 0; repeat < 20; ++repeat) {
    There<float> numbers(plugged.device(), counted(3000, 0), DType::f32);
    auto* const data = reinterpret_cast<float*>(numbers.buffer().data);
    std::vector<float> once(3000), twice(3000);
    stub(ebb_stub_add_one, "ebb_stub_add_one", stream, data, std::uint64_t{3000});
    const auto added = plugged.device().recorded(stream);
    ASSERT_TRUE(added);
    const Event read = libswap::copy(numbers.buffer(), libswap::buffer_of(std::span(once)), *added);
    ASSERT_TRUE(plugged.device().hold(stream, read));
    stub(ebb_stub_add_one, "ebb_stub_add_one", stream, data, std::uint64_t{3000});
    const auto again = plugged.device().recorded(stream);
    ASSERT_TRUE(again);
    libswap::copy(numbers.buffer(), libswap::buffer_of(std::span(twice)), *again).wait();
    EXPECT_EQ(once, counted(3000, 1));
    EXPECT_EQ(twice, counted(3000, 2));
  }
  stub(ebb_stub_close_stream, "ebb_stub_close_stream", stream);
}

TEST(CudaStubDevice, PinsMemoryOfTheHostUntilItIsLetGo) {
  Plugged plugged;
  auto memory = libswap::AlignedBuffer::allocate(1 << 20);
  ASSERT_TRUE(memory);
  {
    const auto pinned = plugged.device().pin((*memory).bytes());
    ASSERT_TRUE(pinned);
    EXPECT_EQ(plugged.pinned(), 1u << 20);
  }
  EXPECT_EQ(plugged.pinned(), 0u);
  plugged.fail("cudaHostRegister");
  const auto refused = plugged.device().pin((*memory).bytes());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::no_memory);
  EXPECT_EQ(
      refused.error().message,
      "Stub 0: cannot pin 1048576 bytes of the host's memory: cudaHostRegister: out of memory");
  EXPECT_TRUE(plugged.device().status()) << "the device works on";
}

TEST(CudaStubDevice, WithoutMemorySaysHowMuchWasAskedFor) {
  Plugged plugged;
  plugged.fail("cudaMalloc");
  const auto memory = plugged.device().allocate(4096);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::no_memory);
  EXPECT_EQ(memory.error().message, "Stub 0: no 4096 bytes of memory: cudaMalloc: out of memory");
  plugged.fail(nullptr);
  EXPECT_TRUE(plugged.device().allocate(4096));
}

TEST(CudaStubDevice, TakesMemoryOfATrainersOwnSource) {
  Plugged plugged;
  const auto pool = plugged.device().allocate(8192);
  ASSERT_TRUE(pool);
  std::uint64_t taken = 0, freed = 0;
  const auto allocate = [&](std::uint64_t bytes) {
    taken += bytes;
    return bytes <= 8192 ? (*pool).buffer().data : nullptr;
  };
  const auto device =
      PluginDevice::open(EBB_CUDA_STUB, 0, {allocate, [&](std::byte*) { ++freed; }});
  ASSERT_TRUE(device);
  {
    EXPECT_TRUE((*device)->allocate(8192));
  }
  EXPECT_EQ(taken, 8192u);
  EXPECT_EQ(freed, 1u);
  EXPECT_FALSE((*device)->allocate(8193));
  EXPECT_EQ(plugged.allocated(), 8192u);
}

// At any call: every event passes, nothing hangs, and the first reason is the one that is told.
TEST(CudaStubDevice, ThatFailsLetsEveryEventPassAndSaysWhy) {
  for (const char* const function : {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent",
                                     "cudaEventSynchronize", "cudaEventCreateWithFlags"})
    for (const std::uint32_t calls : {0u, 1u, 5u}) {
      Plugged plugged(100);
      There<float> numbers(plugged.device(), counted(100, 0), DType::f32);
      std::vector<float> up(100, 5), down(100);
      plugged.fail(function, calls);
      Event last;
      for (int i = 0; i < 8; ++i) {
        last = libswap::copy(libswap::buffer_of(std::span(up)), numbers.buffer(), last);
        last = libswap::copy(numbers.buffer(), libswap::buffer_of(std::span(down)), last);
      }
      last.wait();
      const auto status = plugged.device().status();
      const bool used = std::string(function) != "cudaEventCreateWithFlags";
      if (used) {
        ASSERT_FALSE(status) << function << " after " << calls;
      }
      if (!status) {
        EXPECT_EQ(status.error().code, Code::io);
        EXPECT_NE(status.error().message.find("failed as asked"), std::string::npos);
        EXPECT_FALSE(plugged.device().allocate(1));
        // Whoever waits may free what others still use: not before they are through.
        const EventSource others;
        last = libswap::copy(numbers.buffer(), libswap::buffer_of(std::span(down)), others.event());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        EXPECT_FALSE(last.passed());
        others.pass();
        last.wait();
      }
    }
}

}  // namespace
}  // namespace ebb
