// Settings of Ebb's stores on their way to other formats, under torch.optim's names.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ebb/formats/native/ebb.h"

namespace ebb::formats {
namespace {

// As torch.optim.Muon loads a group; what it has no word for keeps its own.
TEST(EbbSettings, OfMuonAreTorchsForOthers) {
  const auto text = [](const char* word) { return Value::of_string(word); };
  const auto said = [&](const char* second) {
    Catalog content;
    content.groups = {{"muon",
                       {{"beta", Value::of_real(0.95)},
                        {"momentum", text("ema")},
                        {"nesterov", text("yes")},
                        {"scale", text("sqrt_max_1_rows_over_cols")},
                        {"ns_steps", Value::of_int(2)},
                        {"ns.1", text("3.4445,-4.775,2.0315")},
                        {"ns.2", text(second)}},
                       {"w"}}};
    say_as_torch(content);
    EXPECT_TRUE(content.param_steps.empty());
    std::string all;
    for (const auto& [name, value] : content.groups[0].settings)
      all += name + "=" + to_json(value) + " ";
    return all;
  };
  const std::string begin =
      R"(momentum=0.95 momentum_convention="ema" nesterov=true scale="sqrt_max_1_rows_over_cols" )"
      R"(ns_steps=2 )";
  EXPECT_EQ(said("3.4445,-4.775,2.0315"),
            begin + R"(ns_coefficients={"$tuple": [3.4445, -4.775, 2.0315]} )" +
                R"(adjust_lr_fn="original" )");
  EXPECT_EQ(said("1,-2,3"), begin + R"(ns.1="3.4445,-4.775,2.0315" ns.2="1,-2,3" )" +
                                R"(adjust_lr_fn="original" )");
}

// As torch.optim.AdamW loads a group, and its states.
TEST(EbbSettings, OfAdamWAreTorchsForOthers) {
  Catalog content;
  content.step = 40;
  content.groups = {{"muon", {{"beta", Value::of_real(0.95)}}, {"w"}},
                    {"adamw",
                     {{"lr", Value::of_real(1e-3)},
                      {"beta1", Value::of_real(0.9)},
                      {"beta2", Value::of_real(0.95)},
                      {"eps", Value::of_real(1e-8)}},
                     {"a", "b"}}};
  content.param_steps = {{"b", 7}};
  say_as_torch(content);
  const std::map<std::string, std::int64_t> steps = {{"a", 40}, {"b", 7}};
  EXPECT_EQ(content.param_steps, steps);
  std::vector<std::string> names;
  for (const auto& [name, value] : content.groups[1].settings) names.push_back(name);
  const std::vector<std::string> wanted = {"lr",         "betas",
                                           "eps",        "amsgrad",
                                           "maximize",   "foreach",
                                           "capturable", "differentiable",
                                           "fused",      "decoupled_weight_decay"};
  EXPECT_EQ(names, wanted);
  const Value& betas = content.groups[1].settings[1].second;
  EXPECT_EQ(betas.kind, Value::Kind::tuple);
  ASSERT_EQ(betas.items.size(), 2u);
  EXPECT_EQ(betas.items[1].real, 0.95);
}

}  // namespace
}  // namespace ebb::formats
