// A call that an exception leaves in the middle, while another thread wants to make the next one.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "bindings/c/engine_calls.h"

namespace ebb::c {
namespace {

TEST(CEngineCalls, NobodyFindsAnEngineWholeThatACallHasLeft) {
  auto object = std::make_shared<EngineObject>();
  object->ranks = std::make_shared<RanksObject>(std::move(libmuon::make_thread_ranks(1).front()));
  ebb_engine* engine = nullptr;
  ASSERT_TRUE(engines().add(object, &engine));
  std::atomic<bool> left = false, over = false;
  std::atomic<std::uint64_t> found_whole = 0;
  std::thread other([&] {
    while (!over)
      collectively(engine, [&](EngineObject&) -> Result<> {
        if (left) ++found_whole;
        return {};
      });
  });
  for (int i = 0; i < 20000; ++i) {
    left = false;  // before the other thread can come in again
    object->broken = false;
    collectively(engine, [&](EngineObject&) -> Result<> {
      left = true;
      return std::vector<Result<>>().at(0);  // an exception
    });
  }
  over = true;
  other.join();
  EXPECT_EQ(found_whole, 0u);
  object.reset();
  EXPECT_TRUE(engines().remove(engine));
}

}  // namespace
}  // namespace ebb::c
