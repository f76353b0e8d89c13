// What gpt-train says of its forecast.
#include "examples/gpt/report.h"

#include <gtest/gtest.h>

namespace ebb::gpt {
namespace {

const libmuon::Forecast kForecast = {
    .compute_s = 0.020, .disk_s = 0.005, .exchange_s = 0.006, .step_s = 0.026};

TEST(Report, AForecastThatComesTrueWithinATenthIsNotExplained) {
  for (const double engine_s : {0.0236, 0.026, 0.0285})
    EXPECT_EQ(forecast_text(kForecast, {.engine_s = engine_s, .swept_s = 0.02}), "") << engine_s;
}

TEST(Report, WhereTheTimeWentIsSaidWhereAForecastIsOff) {
  EXPECT_EQ(
      forecast_text(kForecast, {.engine_s = 0.069, .swept_s = 0.041, .exchange_s = 0.010}),
      "that is 2.7 times the predicted 26.0 ms: sweeps took 41.0 ms (predicted: 20.0 ms), "
      "exchanges alone 10.0 ms (6.0 ms), waits for the disk (5.0 ms) and for other ranks 18.0 ms; "
      "the next forward runs on the same cores meanwhile, which the forecast leaves out\n");
  EXPECT_TRUE(forecast_text(kForecast, {.engine_s = 0.013, .swept_s = 0.010})
                  .starts_with("that is 0.5 times the predicted 26.0 ms: "));
}

}  // namespace
}  // namespace ebb::gpt
