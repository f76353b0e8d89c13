// What an engine is given looks right to the compiler and does not do its work: refused when the
// engine is opened, by name, instead of wrong bits later.
#include <gtest/gtest.h>

#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb {
namespace {

using libmuon::Communicator;
using libmuon::ReceiveBuffer;
using libmuon::SendBuffer;
using test::RankEngine;
using test::RanksBelow;

// What cannot be called is no communicator at all.
static_assert(std::is_abstract_v<Communicator> && std::is_abstract_v<libmuon::Accelerator> &&
              std::is_abstract_v<libmuon::Kernels> && std::is_abstract_v<libswap::Device>);

struct AllAreFirst : RanksBelow {
  using RanksBelow::RanksBelow;
  Rank rank() const override { return Rank{0}; }
};
struct BeyondTheWorld : RanksBelow {
  using RanksBelow::RanksBelow;
  Rank rank() const override { return Rank{RanksBelow::world()}; }
};
struct SumsNothing : RanksBelow {
  using RanksBelow::RanksBelow;
  Result<> sum(std::span<std::int64_t> /*numbers*/) override { return {}; }
};
struct AgreesWithItself : RanksBelow {
  using RanksBelow::RanksBelow;
  Result<std::int64_t> agree(std::int64_t mine) override { return mine; }
};
struct AgreesOnTheLargest : RanksBelow {
  using RanksBelow::RanksBelow;
  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const std::int64_t least, RanksBelow::agree(-mine));
    return -least;
  }
};
struct ExchangesNothing : RanksBelow {
  using RanksBelow::RanksBelow;
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> /*sends*/,
                                        std::span<const ReceiveBuffer> /*receives*/,
                                        std::span<const libswap::Event> /*after*/) override {
    return libswap::Event();
  }
};
struct DuplicatesAsAnother : RanksBelow {
  using RanksBelow::RanksBelow;
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto one, RanksBelow::duplicate());
    return std::unique_ptr<Communicator>(std::make_unique<AllAreFirst>(std::move(one)));
  }
};

libmuon::EngineConfig config_of(std::uint32_t ranks) {
  return test::config_of({.ranks = ranks}, test::nuisance_model());
}

test::World in_memory(std::uint32_t ranks) {
  return {libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", ranks};
}

// Some rank says so, and none is left waiting.
template <typename Lookalike>
void expect_refused(const std::string& message) {
  test::World world = in_memory(3);
  bool said = false;
  for (const auto& answer : world.run([&](Communicator& below) -> Result<> {
         Lookalike ranks(below);
         EBB_TRY(RankEngine::open(world, ranks, config_of(3)));
         return {};
       })) {
    ASSERT_FALSE(answer) << message;
    EXPECT_TRUE(answer.error().code == Code::usage || answer.error().code == Code::peer);
    said = said || answer.error().message.find(message) != std::string::npos;
  }
  EXPECT_TRUE(said) << message;
}

TEST(Lookalikes, OfACommunicatorAreRefusedByTheVerbThatDoesNotDoItsWork) {
  expect_refused<AllAreFirst>("the communicator does not sum, or its ranks are not 0 to 2: rank 0");
  expect_refused<BeyondTheWorld>("the communicator says that it is rank 3 of 3");
  expect_refused<SumsNothing>("the communicator does not sum");
  expect_refused<AgreesWithItself>("the communicator does not agree on the smallest");
  expect_refused<AgreesOnTheLargest>("the communicator does not agree on the smallest: 2 of 0 to");
  expect_refused<ExchangesNothing>("the communicator does not exchange");
  expect_refused<DuplicatesAsAnother>("the communicator of rank 1 of 3 duplicates as rank 0 of 3");
}

TEST(Lookalikes, AreNotTheCommunicatorsThatThereAre) {
  for (const std::uint32_t ranks : {1u, 2u, 5u}) {
    test::World world = in_memory(ranks);
    for (const auto& answer : world.run([](Communicator& comm) -> Result<> {
           EBB_TRY(libmuon::check_communicator(comm));
           EBB_TRY_ASSIGN(const auto other, comm.duplicate());
           EBB_TRY(libmuon::check_duplicate(comm, *other));
           return libmuon::check_communicator(*other);
         }))
      EXPECT_TRUE(answer) << answer.error().message;
  }
}

// Its kernels are another device's.
class TwoDevices : public test::LateAccelerator {
 public:
  using LateAccelerator::LateAccelerator;
  Result<std::unique_ptr<libmuon::Kernels>> kernels(const libmuon::KernelsFor& what) override {
    return other_.kernels(what);
  }

 private:
  test::LateAccelerator other_{2};
};
class NoKernels : public test::LateAccelerator {
 public:
  using LateAccelerator::LateAccelerator;
  Result<std::unique_ptr<libmuon::Kernels>> kernels(const libmuon::KernelsFor& /*what*/) override {
    return std::unique_ptr<libmuon::Kernels>();
  }
};

TEST(Lookalikes, OfAnAcceleratorAreRefusedWhereTheKernelsAreNotItsOwn) {
  TwoDevices two(1);
  NoKernels none(1);
  for (libmuon::Accelerator* accelerator :
       {static_cast<libmuon::Accelerator*>(&two), static_cast<libmuon::Accelerator*>(&none)}) {
    test::World world = in_memory(1);
    for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
           test::Training setup{.accelerator = accelerator};
           EBB_TRY(RankEngine::open(world, ranks, test::config_of(setup, test::nuisance_model())));
           return {};
         })) {
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code, Code::usage);
      EXPECT_NE(answer.error().message.find("the accelerator gives no kernels of its own device, "),
                std::string::npos)
          << answer.error().message;
    }
  }
}

}  // namespace
}  // namespace ebb
