// The runs of the covering array (tests/libmuon/covering) in which a device computes, on the
// plugin: wherever state, gradients and weights lie and whatever travels, the bits of the plain run
// there.
#include <map>

#include "tests/libmuon/covering/rank_run.h"
#include "tests/libmuon/cuda/plugged.h"
#include "tests/libmuon/support/training.h"
#include "tests/support/program.h"

namespace ebb::test {
namespace {

constexpr std::uint64_t kSeed = 14, kCut = 1, kSteps = 3;
constexpr std::uint32_t kParts = 2;  // side by side

// Factors that reach a device, by their plain values.
constexpr std::array<std::string_view, 14> kReachIt = {
    "state at owners",          "gradients reduced",       "one chunk",
    "trainer in fp32",          "momentum in fp32",        "begins with initial weights",
    "weights are the engine's", "weights handed out",      "no decay",
    "no second moments",        "products in fp32",        "the host computes",
    "messages on the host",     "tiers as the budget goes"};

// Every pair of their values that has a device in it, on two ranks that page.
std::vector<Row> rows_on_a_device() {
  Factors some = factors(Mpi::without);
  std::vector<std::uint32_t> sizes(some.sizes.size(), 1);
  for (const std::string_view name : kReachIt) {
    const std::uint32_t factor = choice_named(name).factor;
    sizes[factor] = some.sizes[factor];
  }
  some.sizes = sizes;
  std::erase_if(some.never, [&](const Never& never) {
    return never.one.value >= sizes[never.one.factor] ||
           never.other.value >= sizes[never.other.factor];
  });
  std::vector<Row> rows;
  for (const Row& row : covering_array(some, 2, kSeed))
    if (run_of(row).computes == Computes::device)
      rows.push_back(with(with(paged(row), choice_named("2 ranks")), choice_named("zero12")));
  return rows;
}

class CudaRuns : public testing::TestWithParam<std::uint32_t> {
 protected:
  // The hash of what it left, one leg behind the other.
  std::string run(std::vector<Leg> legs) {
    const TempDir directory;
    for (Leg& leg : legs) {
      leg.directory = directory.path();
      const auto on_plugin = [&] {
        return std::shared_ptr<libmuon::Accelerator>(std::shared_ptr<void>(),
                                                     &plugged_.accelerator());
      };
      EXPECT_EQ(run_threads(leg, on_plugin), Exit::well);
    }
    const std::string stopped = test_support::text_of_file(directory.path() / "stopped");
    stopped_ += static_cast<std::uint64_t>(std::ranges::count(stopped, '\n'));
    return test_support::text_of_file(directory.path() / "hash");
  }

  Plugged plugged_{50};
  std::uint64_t stopped_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Part, CudaRuns, testing::Range(0u, kParts));

// Each is resumed, and then its steps are stopped by a disk that fails.
TEST_P(CudaRuns, HaveThePlainBitsThoughTheyAreResumedAndStopped) {
  std::map<Row, std::string> wanted;
  const auto rows = rows_on_a_device();
  std::uint64_t runs = 0;
  for (std::size_t i = GetParam(); i < rows.size() && !HasFailure(); i += kParts, ++runs) {
    SCOPED_TRACE(compose("run {}: {}", i, text_of(rows[i])));
    const Row plain = with(plain_of(rows[i]), choice_named("a device computes"));
    std::string& hash = wanted[plain];
    if (hash.empty()) hash = run({{.row = plain, .until = kSteps}});
    ASSERT_NE(hash, "");
    EXPECT_EQ(run({{.row = rows[i], .until = kCut},
                   {.row = rows[i], .until = kSteps, .trouble = Trouble::stop, .draw = 7 * i}}),
              hash);
  }
  EXPECT_GT(stopped_, runs / 2);
  std::printf("%llu runs, %zu mathematics, %llu steps stopped\n",
              static_cast<unsigned long long>(runs), wanted.size(),
              static_cast<unsigned long long>(stopped_));
}

}  // namespace
}  // namespace ebb::test
