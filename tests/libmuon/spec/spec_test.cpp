// What an optimizer step means, as values and as the manifest's text.
#include "ebb/libmuon/spec/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace ebb::libmuon {
namespace {

using formats::native::Group;

std::string& setting(Group& group, std::string_view name) {
  return std::find_if(group.settings.begin(), group.settings.end(),
                      [&](const auto& entry) { return entry.first == name; })
      ->second;
}

TEST(Spec, KellerIsTheReferenceImplementation) {
  const MuonSpec spec = MuonSpec::keller();
  EXPECT_EQ(spec.lr, 0.02);
  EXPECT_EQ(spec.beta, 0.95);
  EXPECT_EQ(spec.momentum, Momentum::ema);
  EXPECT_TRUE(spec.nesterov);
  EXPECT_EQ(spec.weight_decay, 0.0);
  EXPECT_EQ(spec.eps, 1e-7);
  EXPECT_EQ(spec.eps_rule, EpsRule::add);
  ASSERT_EQ(spec.iterations.size(), 5u);
  EXPECT_EQ(spec.iterations[4].a, 3.4445f);
  EXPECT_EQ(spec.iterations[4].b, -4.7750f);
  EXPECT_EQ(spec.iterations[4].c, 2.0315f);
  EXPECT_TRUE(validate(spec));
  EXPECT_TRUE(validate(AdamSpec{}));
  EXPECT_TRUE(validate(AdamSpec::torch()));
}

TEST(Spec, ASettingOutOfRangeIsNamedWithItsValue) {
  const auto message_of = [](auto&& change) {
    MuonSpec spec = MuonSpec::keller();
    change(spec);
    const auto checked = validate(spec);
    return checked ? std::string("fine") : checked.error().message;
  };
  EXPECT_EQ(message_of([](MuonSpec& s) { s.beta = 1.0; }), "setting beta = 1 is outside [0, 1)");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.lr = -0.5; }),
            "setting lr = -0.5 is outside [0, infinity)");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.weight_decay = std::nan(""); }),
            "setting weight_decay = nan is outside [0, infinity)");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.eps = std::numeric_limits<double>::infinity(); }),
            "setting eps = inf is outside [0, infinity)");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.iterations.clear(); }),
            "setting ns_steps = 0 is outside [1, 32]");
  EXPECT_EQ(
      message_of([](MuonSpec& s) { s.iterations[1].c = std::numeric_limits<float>::infinity(); }),
      "setting ns.2 = inf is outside the finite numbers");

  AdamSpec adam;
  adam.eps = 1e-60;
  const auto checked = validate(adam);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().message, "setting eps = 1e-60 is outside (0, infinity) in fp32");
}

TEST(Spec, Bf16IsRefusedUntilItExists) {
  MuonSpec spec = MuonSpec::keller();
  spec.precision = Precision::bf16;
  const auto checked = validate(spec);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::unsupported);
}

TEST(Spec, AGroupHoldsEveryNumberExactly) {
  MuonSpec spec = MuonSpec::keller();
  spec.lr = 0.1 + 0.2;
  spec.beta = std::nextafter(0.95, 1.0);
  spec.weight_decay = 5e-324;
  spec.momentum = Momentum::sum;
  spec.nesterov = false;
  spec.eps_rule = EpsRule::clamp;
  spec.scale = ScaleRule::match_rms_adamw;
  spec.iterations[3].b = std::nextafter(-4.7750f, 0.0f);
  Group group = to_group(spec);
  EXPECT_EQ(group.optimizer, "muon");
  EXPECT_EQ(setting(group, "lr"), "0.30000000000000004");
  EXPECT_EQ(setting(group, "ns.1"), "3.4445,-4.775,2.0315");

  const auto back = muon_from(group);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->lr, spec.lr);
  EXPECT_EQ(back->beta, spec.beta);
  EXPECT_EQ(back->weight_decay, spec.weight_decay);
  EXPECT_EQ(back->iterations[3].b, spec.iterations[3].b);
  EXPECT_EQ(to_group(*back), group);

  const AdamSpec adam = AdamSpec::torch();
  const auto adam_back = adam_from(to_group(adam));
  ASSERT_TRUE(adam_back) << adam_back.error().message;
  EXPECT_EQ(to_group(*adam_back), to_group(adam));
}

TEST(Spec, AGroupThatIsNotUnderstoodIsRefusedByName) {
  const auto message_of = [](auto&& change) {
    Group group = to_group(MuonSpec::keller());
    change(group);
    const auto spec = muon_from(group);
    return spec ? std::string("fine") : spec.error().message;
  };
  const std::string prefix = "group of optimizer muon: setting ";
  EXPECT_EQ(message_of([](Group& g) { g.settings.erase(g.settings.begin()); }),
            prefix + "lr is missing");
  EXPECT_EQ(message_of([](Group& g) { g.settings.emplace_back("cautious", "yes"); }),
            prefix + "cautious is unknown or given twice");
  EXPECT_EQ(message_of([](Group& g) { g.settings.emplace_back("lr", "1"); }),
            prefix + "lr is unknown or given twice");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "beta") = "0.9x"; }),
            prefix + "beta = 0.9x is not a number");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "momentum") = "heavy"; }),
            prefix + "momentum = heavy is not ema or sum");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "ns_steps") = "1000000"; }),
            prefix + "ns_steps = 1000000 is not a whole number up to 32");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "ns.5") = "1,2"; }),
            prefix + "ns.5 = 1,2 is not three numbers a,b,c");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "ns_steps") = "4"; }),
            prefix + "ns.5 is unknown or given twice");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "beta") = "1.5"; }),
            "setting beta = 1.5 is outside [0, 1)");
  EXPECT_EQ(message_of([](Group& g) { g.optimizer = "lion"; }),
            "group of optimizer lion where muon is expected");
}

}  // namespace
}  // namespace ebb::libmuon
