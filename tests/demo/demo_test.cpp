// The demo's claim that trains nothing: what it asks of the tools holds.
#include <gtest/gtest.h>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/demo/demo.h"

namespace ebb {
namespace {

TEST(Demo, ExplainsACheckpointOfDeepSpeed) {
  auto backend = libswap::open_backend(libswap::BackendChoice::threads);
  ASSERT_TRUE(backend) << backend.error().message;
  const auto io = libswap::IoQueue::start(std::move(backend->backend), {});
  ASSERT_TRUE(io) << io.error().message;
  const demo::Demo demo{.directory = {},
                        .programs = EBB_BIN,
                        .fixtures = EBB_FIXTURES,
                        .text = {},
                        .scale = {},
                        .io = **io};
  demo::Story none;
  const auto lines = claim_deepspeed(demo, none);
  ASSERT_TRUE(lines) << lines.error().message;
  EXPECT_EQ(lines->size(), 1u);
}

}  // namespace
}  // namespace ebb
