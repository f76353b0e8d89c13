#include "ebb/libswap/stats.h"

#include <gtest/gtest.h>

#include "ebb/libswap/pool.h"

namespace ebb::libswap {
namespace {

RankStats some(std::optional<Rank> rank, std::uint64_t bytes) {
  return {rank,
          {{"io_read_bytes", StatKind::counter, "Bytes read.", bytes},
           {"frame_seconds", StatKind::gauge, "Time.", 0.5}}};
}

TEST(Stats, AreALineOfJsonForEachRank) {
  EXPECT_EQ(stats_line(1.25, some(Rank{3}, 18446744073709551615u)),
            "{\"schema\":\"ebb.stats/1\",\"seconds\":1.25,\"rank\":3,"
            "\"io_read_bytes\":18446744073709551615,\"frame_seconds\":0.5}\n");
  EXPECT_TRUE(stats_line(0, some(std::nullopt, 1)).starts_with(std::string(kStatsLine)));
  EXPECT_NE(stats_line(0, some(std::nullopt, 1)).find("\"rank\":null,"), std::string::npos);
}

TEST(Stats, ArePrometheusTextWithAHeadForEachMetric) {
  EXPECT_EQ(stats_text(std::vector{some(Rank{0}, 7), some(Rank{1}, 8), some(std::nullopt, 9)}),
            "# HELP ebb_io_read_bytes_total Bytes read.\n"
            "# TYPE ebb_io_read_bytes_total counter\n"
            "ebb_io_read_bytes_total{rank=\"0\"} 7\n"
            "ebb_io_read_bytes_total{rank=\"1\"} 8\n"
            "ebb_io_read_bytes_total 9\n"
            "# HELP ebb_frame_seconds Time.\n"
            "# TYPE ebb_frame_seconds gauge\n"
            "ebb_frame_seconds{rank=\"0\"} 0.5\n"
            "ebb_frame_seconds{rank=\"1\"} 0.5\n"
            "ebb_frame_seconds 0.5\n");
}

TEST(Stats, OfAPoolAreItsJobsAndChains) {
  for (const std::uint32_t threads : {1u, 3u}) {
    const auto pool = Pool::start(threads);
    ASSERT_TRUE(pool);
    (*pool)->run(5, [](std::size_t) {});
    const Event done = (*pool)->begin({{2, [](std::size_t) {}}, {1, [](std::size_t) {}}});
    (*pool)->help_until([&] { return done.passed(); });
    EXPECT_EQ((*pool)->stats().jobs, 8u);
    EXPECT_EQ((*pool)->stats().chains, 1u);
  }
}

}  // namespace
}  // namespace ebb::libswap
