// The demo's claim that trains nothing: what it asks of the tools holds.
#include <gtest/gtest.h>

#include "ebb/libswap/queue/io_queue.h"
#include "tests/demo/demo.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb {
namespace {

TEST(Demo, ExplainsACheckpointOfDeepSpeed) {
  const libswap::TemporaryDirectory directory;
  auto backend = libswap::open_backend(libswap::BackendChoice::threads);
  ASSERT_TRUE(backend) << backend.error().message;
  const auto io = libswap::IoQueue::start(std::move(backend->backend), {});
  ASSERT_TRUE(io) << io.error().message;
  const demo::Demo demo{.directory = directory.path(),
                        .programs = EBB_BIN,
                        .fixtures = EBB_FIXTURES,
                        .text = {},
                        .scale = {},
                        .io = **io};
  demo::Story none;
  const auto lines = claim_deepspeed(demo, none);
  ASSERT_TRUE(lines) << lines.error().message;
  ASSERT_EQ(lines->size(), 2u);
  for (const demo::Line& line : *lines) EXPECT_EQ(line.verdict, demo::Verdict::ok) << line.what;
  EXPECT_NE((*lines)[1].what.find("its 14 momenta and moments"), std::string::npos);
}

}  // namespace
}  // namespace ebb
