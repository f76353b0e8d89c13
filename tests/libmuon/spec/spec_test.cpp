// What an optimizer step means, as values and as the manifest's text.
#include "ebb/libmuon/spec/spec.h"

#include "ebb/libmuon/kernels/rounding.h"
#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libmuon/spec/presets.h"

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
            "setting lr = -0.5 is outside [0, infinity) in fp32");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.weight_decay = std::nan(""); }),
            "setting weight_decay = nan is outside [0, infinity) in fp32");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.eps = std::numeric_limits<double>::infinity(); }),
            "setting eps = inf is outside [0, infinity) in fp32");
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

TEST(Spec, SettingsThatContradictEachOtherAreRefused) {
  const auto message_of = [](auto&& change) {
    MuonSpec spec = *preset("deepspeed");
    change(spec);
    const auto checked = validate(spec);
    return checked ? std::string("fine") : checked.error().message;
  };
  EXPECT_EQ(message_of([](MuonSpec&) {}), "fine");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.form = Form::standard; }),
            "setting restarts: only form = gram restarts");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.restarts = {5}; }),
            "setting restarts = 5 is outside the iterations 1 to 4 in ascending order");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.restarts = {2, 2}; }),
            "setting restarts = 2 is outside the iterations 3 to 4 in ascending order");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.norm_of = NormOf::rounded; }),
            "setting norm_of: before it is scaled an update does not fit fp16");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.handed = Precision::fp16; }),
            "setting handed: fp16 has no room for updates below 6e-8 or above 65504");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.handed = Precision::tf32; }),
            "setting handed: tf32 is what products take, and nothing is kept in it");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.weights = Precision::tf32; }),
            "setting weights: tf32 is what products take, and nothing is kept in it");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.split = {Split::Kind::heads, {2, 2}}; }),
            "setting split: wanted none, heads 8, rows 8,4,4 or groups 8,4,4");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.split = {Split::Kind::rows, {2, 0}}; }),
            "setting split: a part of no rows");
  EXPECT_EQ(message_of([](MuonSpec& s) { s.norm_factor = 0; }),
            "setting norm_factor = 0 is outside (0, infinity) in fp32");
  const auto of_update = [&](const auto& change) {
    return message_of([&](MuonSpec& s) {
      s.out = Out::update;
      s.weight_decay = 0;
      s.weights = Precision::fp32;
      change(s);
    });
  };
  EXPECT_EQ(of_update([](MuonSpec&) {}), "fine");
  EXPECT_EQ(of_update([](MuonSpec& s) { s.weight_decay = 0.1; }),
            "setting out: an update has no weights to decay");
  EXPECT_EQ(of_update([](MuonSpec& s) { s.decay = Decay::l2; }),
            "setting out: decay = l2 wants weights, and an update has none");
  EXPECT_EQ(of_update([](MuonSpec& s) { s.weights = Precision::bf16; }),
            "setting out: an update has no weights to round");
}

// CANS blows up in bf16, fp16 and tf32, not in fp32; a norm that leaves room makes it safe.
TEST(Spec, IterationsThatGrowWhatRoundingLeavesAboveOneAreRefused) {
  MuonSpec spec = *preset("emerging");
  spec.iterations = *coefficients("cans", 7);
  for (const Precision precision : {Precision::bf16, Precision::fp16, Precision::tf32}) {
    spec.precision = precision;
    const auto checked = validate(spec);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, Code::usage);
    EXPECT_NE(checked.error().hint.find("fp32"), std::string::npos);
  }
  spec.norm_factor = 1.02;
  EXPECT_TRUE(validate(spec));
  spec.norm_factor = 1;
  spec.precision = Precision::fp32;
  EXPECT_TRUE(validate(spec));
}

TEST(Spec, CoefficientsBeyondASetAreItsLastOrBeginAgain) {
  const auto polar = *coefficients("polar_express", 10);
  ASSERT_EQ(polar.size(), 10u);
  EXPECT_EQ(polar[9].a, polar[7].a);
  const auto quintic = *coefficients("quintic", 7);
  EXPECT_EQ(quintic[6].b, quintic[1].b);
  const auto cubic = *coefficients("cubic5", 5);
  for (const Coefficients& step : cubic) EXPECT_EQ(step.c, 0);
  EXPECT_NE(quintic[6].b, quintic[4].b);
  const auto none = coefficients("polar-express", 5);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "there is no set of coefficients polar-express");
  EXPECT_EQ(none.error().hint, "did you mean polar_express?");
}

TEST(Spec, ANumberOfIterationsIsASettingAndTheirSetGoesOn) {
  const MuonSpec torch = *preset("torch");
  for (const char* count : {"1", "5", "7", "32"}) {
    const auto spec = with_setting(torch, "ns_steps", count);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->iterations, *coefficients("simple", std::stoul(count)));
  }
  const MuonSpec dion = *preset("dion");
  EXPECT_EQ(with_setting(dion, "ns_steps", "8")->iterations,
            *coefficients("polar_express_safe", 8));
  MuonSpec quintic = torch;
  quintic.iterations = *coefficients("quintic", 3);
  EXPECT_EQ(with_setting(quintic, "ns_steps", "7")->iterations, *coefficients("quintic", 7));
  MuonSpec own = torch;
  own.iterations = {{3, -3, 1}, {2, -1, 0}};
  EXPECT_EQ(with_setting(own, "ns_steps", "3")->iterations[2], (Coefficients{2, -1, 0}));
  for (const char* wrong : {"0", "33", "-1", "many"}) {
    const auto none = with_setting(torch, "ns_steps", wrong);
    ASSERT_FALSE(none) << wrong;
    EXPECT_EQ(none.error().code, Code::usage);
    EXPECT_NE(none.error().message.find("ns_steps"), std::string::npos) << none.error().message;
  }
}

// DeepSpeed takes the norm in the dtype of the gradients, so `handed` says which.
TEST(Spec, OnePresetOfDeepSpeedIsForGradientsInFp32AndInBf16) {
  const MuonSpec fp32 = *preset("deepspeed");
  EXPECT_EQ(norm_precision(fp32), Precision::fp32);
  const auto bf16 = with_setting(fp32, "handed", "bf16");
  ASSERT_TRUE(bf16);
  EXPECT_EQ(norm_precision(*bf16), Precision::bf16);
  EXPECT_EQ((*bf16).precision, Precision::fp16);
  EXPECT_EQ(update_dtype(*bf16), DType::bf16);
}

TEST(Spec, TorchsPresetsDifferInTheScaleAlone) {
  const auto scales = [](const char* name) {
    std::vector<double> all;
    for (const Shape& shape : {Shape{12, 3}, Shape{3, 12}, Shape{5, 5}, Shape{1, 9}})
      all.push_back(scales_of(*preset(name), shape, {0, 1}).front().scale);
    return all;
  };
  EXPECT_EQ(scales("torch"), (std::vector<double>{2, 1, 1, 1}));
  EXPECT_EQ(scales("torch_spectral_unclamped"), (std::vector<double>{2, 0.5, 1, 1.0 / 3}));
  EXPECT_EQ(scales("torch_match_rms_adamw")[3], 0.2 * 3);
  for (const char* name : {"torch_spectral_unclamped", "torch_match_rms_adamw"}) {
    MuonSpec spec = *preset(name);
    spec.scale = preset("torch")->scale;
    EXPECT_EQ(to_group(spec), to_group(*preset("torch"))) << name;
  }
}

TEST(Spec, EveryPresetIsASpecThatAGroupHolds) {
  for (const Preset& one : presets()) {
    const MuonSpec spec = *preset(one.name);
    EXPECT_TRUE(validate(spec)) << one.name;
    const Group group = to_group(spec);
    const auto back = muon_from(group);
    ASSERT_TRUE(back) << one.name << ": " << back.error().message;
    EXPECT_EQ(to_group(*back), group);
    EXPECT_FALSE(one.source.empty());
  }
  EXPECT_EQ(preset("moonligh").error().hint, "did you mean moonlight?");
  // In fp32 nothing is rounded on the way: those are one.
  MuonSpec keller = *preset("keller");
  keller.precision = Precision::fp32;
  EXPECT_EQ(keller.scale, MuonSpec::keller().scale);
  EXPECT_EQ(keller.eps, MuonSpec::keller().eps);
}

TEST(Spec, ThePrecisionIsInTheGroupByItsName) {
  for (const auto& [precision, name] : {std::pair(Precision::fp32, "fp32"),
                                        {Precision::bf16, "bf16"},
                                        {Precision::fp16, "fp16"},
                                        {Precision::tf32, "tf32"}}) {
    MuonSpec spec = MuonSpec::keller();
    spec.precision = precision;
    Group group = to_group(spec);
    EXPECT_EQ(setting(group, "precision"), name);
    EXPECT_EQ(muon_from(group)->precision, precision);
    EXPECT_EQ(with_setting(MuonSpec::keller(), "precision", name)->precision, precision);
  }
}

// What torch and Emerging-Optimizers call high: all but the products is fp32, so what travels is.
TEST(Spec, Tf32IsOfProductsAlone) {
  MuonSpec high = *preset("emerging_high");
  EXPECT_EQ(high.precision, Precision::tf32);
  EXPECT_EQ(update_dtype(high), DType::f32);
  EXPECT_EQ(result_dtype(high), DType::f32);
  high.norm_of = NormOf::rounded;
  EXPECT_EQ(update_dtype(high), DType::f32);
  high.precision = Precision::bf16;
  high.norm_of = NormOf::update;
  EXPECT_EQ(to_group(high), to_group(*preset("emerging")));
}

// As version 0.1 wrote it.
TEST(Spec, AStoreWithoutLaterSettingsMeansWhatItMeantThen) {
  Group group = to_group(MuonSpec::keller());
  const std::array then = {"lr",  "beta",     "momentum",  "nesterov", "weight_decay",
                           "eps", "eps_rule", "precision", "scale",    "ns_steps"};
  std::erase_if(group.settings, [&](const auto& setting) {
    return !setting.first.starts_with("ns.") &&
           std::find(then.begin(), then.end(), setting.first) == then.end();
  });
  EXPECT_EQ(group.settings.size(), 15u);
  const auto back = muon_from(group);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_group(*back), to_group(MuonSpec::keller()));
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
  spec.decay = Decay::cautious;
  spec.form = Form::gram;
  spec.restarts = {1, 3};
  spec.split = {Split::Kind::groups, {12, 4, 4}};
  spec.dims = Dims::flatten;
  spec.norm_factor = 1.02;
  spec.iterations[3].b = std::nextafter(-4.7750f, 0.0f);
  Group group = to_group(spec);
  EXPECT_EQ(group.optimizer, "muon");
  EXPECT_EQ(setting(group, "lr"), "0.30000000000000004");
  EXPECT_EQ(setting(group, "ns.1"), "3.4445,-4.775,2.0315");
  EXPECT_EQ(setting(group, "restarts"), "1,3");
  EXPECT_EQ(setting(group, "split"), "groups 12,4,4");

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
    if (spec) return std::string("fine");
    const Error& error = spec.error();
    return error.hint.empty() ? error.message : error.message + " (" + error.hint + ")";
  };
  const std::string prefix = "group of optimizer muon: setting ";
  EXPECT_EQ(message_of([](Group& g) { g.settings.erase(g.settings.begin()); }),
            prefix + "lr is missing");
  EXPECT_EQ(message_of([](Group& g) {
              std::find_if(g.settings.begin(), g.settings.end(), [](const auto& entry) {
                return entry.first == "restarts";
              })->first = "restart";
            }),
            prefix + "restart is unknown or given twice (did you mean restarts?)");
  EXPECT_EQ(message_of([](Group& g) { g.settings.emplace_back("lr", "1"); }),
            prefix + "lr is unknown or given twice");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "beta") = "0.9x"; }),
            prefix + "beta = 0.9x is not a number");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "momentum") = "heavy"; }),
            prefix + "momentum = heavy is not ema or sum");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "ns_steps") = "1000000"; }),
            prefix + "ns_steps = 1000000 is not a whole number up to 32");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "split") = "groups 3,"; }),
            prefix + "split = groups 3, is not none, heads 8, rows 8,4,4 or groups 8,4,4");
  EXPECT_EQ(message_of([](Group& g) { setting(g, "form") = "grams"; }),
            prefix + "form = grams is not standard or gram");
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
