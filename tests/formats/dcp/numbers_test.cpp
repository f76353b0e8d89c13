// Parameters that an optimizer only numbers: a name is given where one assignment is possible, and
// it is said what it follows from. And what counts their steps, whatever its type.
#include "ebb/formats/state_dict/numbers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/state_dict/infer.h"
#include "tests/formats/dcp/state_dicts.h"

namespace ebb {

namespace {

using formats::ListOrder;
using formats::NamedBy;
using formats::PartsSaid;
using state_dicts::add_group;
using state_dicts::add_value;
using state_dicts::named;
using state_dicts::names;
using state_dicts::Path;
using state_dicts::state_dict;

enum class Order { of_a_torch_file, of_an_index };

// A model of these shapes, p0, p1, ...; an optimizer with a group for each list of numbers, whose
// states have the shapes of the model's parameters at `are`.
struct Made {
  std::vector<Shape> model;
  std::vector<std::vector<std::int64_t>> groups;
  std::vector<std::size_t> are;  // of each number, which parameter it is
  Order order = Order::of_an_index;
};

Catalog made(const Made& how) {
  std::vector<std::pair<Path, Shape>> tensors;
  for (std::size_t i = 0; i < how.model.size(); ++i)
    tensors.push_back({{"model", "p" + std::to_string(i)}, how.model[i]});
  for (std::size_t i = 0; i < how.are.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    tensors.push_back({{"opt", "state", number, "exp_avg"}, how.model[how.are[i]]});
    tensors.push_back({{"opt", "state", number, "step"}, {}});
  }
  Catalog catalog = state_dict(std::move(tensors));
  catalog.listed =
      how.order == Order::of_a_torch_file ? ListOrder::of_the_model : ListOrder::unknown;
  for (std::size_t g = 0; g < how.groups.size(); ++g) {
    std::vector<Value> params;
    for (const std::int64_t number : how.groups[g]) params.push_back(Value::of_int(number));
    add_value(catalog, {"opt", "param_groups", static_cast<std::int64_t>(g), "params"},
              Value::of_list(std::move(params)));
  }
  return catalog;
}

// The names of exp_avg, number by number.
std::vector<std::string> names_of(Catalog& catalog, const PartsSaid& said = {}) {
  std::vector<std::string> all;
  for (const auto& [name, state] : named(catalog, said))
    if (state == "exp_avg") all.push_back(name);
  return all;
}

using Texts = std::vector<std::string>;

TEST(OptimizerNumbers, BecomeNamesWhereEachShapeIsThatOfOneParameter) {
  // A frozen parameter, groups that are not in the model's order, parameters given backwards.
  Catalog catalog = made({{{3}, {4}, {2, 3}, {5}}, {{0, 1}, {2}}, {3, 2, 0}});
  EXPECT_EQ(names_of(catalog), (Texts{"p3", "p2", "p0"}));
  ASSERT_EQ(catalog.parts.optimizers.size(), 1u);
  EXPECT_EQ(catalog.parts.optimizers[0].named, NamedBy::shapes);
  EXPECT_EQ(catalog.groups[0].params, (Texts{"p3", "p2"}));
  ASSERT_EQ(catalog.notes.size(), 1u);
  EXPECT_EQ(catalog.notes[0], "names of 6 states follow from shapes: nothing records them");
}

// torch's save deals what all ranks have to the ranks, and .metadata lists rank after rank.
TEST(OptimizerNumbers, AreNotNamedByTheOrderOfAnIndex) {
  for (const Made& how :
       {Made{{{8, 8}, {8, 8}, {8, 8}}, {{0, 1, 2}}, {0, 2, 1}},            // a stack of layers
        Made{{{9, 4}, {4}, {4, 4}, {4}}, {{0, 1}, {2, 3}}, {0, 2, 1, 3}},  // decay, no decay
        Made{{{4, 4}, {4, 4}, {6, 4}, {6, 4}}, {{0, 1}, {2, 3}}, {0, 1, 2, 3}},  // by shape
        Made{{{4, 4}, {4, 4}, {6}}, {{0, 1}}, {1, 2}}}) {                        // one frozen
    Catalog catalog = made(how);
    const Texts found = names_of(catalog);
    const bool any = std::ranges::any_of(how.groups.back(), [&](std::int64_t n) {
      return found[std::size_t(n)].starts_with("opt.");
    });
    EXPECT_TRUE(any) << found.back();
    EXPECT_NE(catalog.notes.back().find("--names FILE"), std::string::npos) << catalog.notes.back();
    for (std::size_t n = 0; n < found.size(); ++n)
      EXPECT_TRUE(found[n].starts_with("opt.") || found[n] == "p" + std::to_string(how.are[n]));
  }
}

// Adafactor keeps a vector of the rows and one of the columns, torch's own with the other extent 1.
TEST(OptimizerNumbers, BecomeNamesByTheFactorsOfAParameter) {
  using Factored = std::vector<std::pair<std::size_t, std::vector<Shape>>>;
  const std::vector<Shape> model = {{11, 6}, {6, 4}, {4}, {2, 6, 4}, {4, 4}};
  for (const Factored& states :
       {Factored{
            {0, {{11}, {6}}}, {1, {{6}, {4}}}, {2, {{4}}}, {3, {{2, 6}, {2, 4}}}, {4, {{4}, {4}}}},
        Factored{{4, {{4, 1}, {1, 4}}}, {1, {{6, 1}, {1, 4}}}, {3, {{2, 6, 1}, {2, 1, 4}}}}}) {
    std::vector<std::pair<Path, Shape>> tensors;
    for (std::size_t i = 0; i < model.size(); ++i)
      tensors.push_back({{"model", "p" + std::to_string(i)}, model[i]});
    std::vector<Value> params;
    for (std::size_t n = 0; n < states.size(); ++n) {
      const auto number = static_cast<std::int64_t>(n);
      const std::vector<Shape>& shapes = states[n].second;
      const bool factored = shapes.size() == 2;
      for (std::size_t s = 0; s < shapes.size(); ++s)
        tensors.push_back({{"opt", "state", number,
                            !factored ? "whole"
                            : s == 0  ? "rows"
                                      : "columns"},
                           shapes[s]});
      params.push_back(Value::of_int(number));
    }
    Catalog catalog = state_dict(std::move(tensors));
    add_group(catalog, {"opt"}, Value::of_list(std::move(params)));
    named(catalog);
    ASSERT_EQ(catalog.groups.size(), 1u);
    for (std::size_t n = 0; n < states.size(); ++n)
      EXPECT_EQ(catalog.groups[0].params[n], "p" + std::to_string(states[n].first));
  }
}

TEST(OptimizerNumbers, OfATorchSaveFileAreTakenInItsOrderAndThatIsSaid) {
  Catalog stack = made({{{8, 8}, {8, 8}, {8, 8}}, {{0, 1, 2}}, {0, 1, 2}, Order::of_a_torch_file});
  EXPECT_EQ(names_of(stack), (Texts{"p0", "p1", "p2"}));
  EXPECT_EQ(stack.parts.optimizers[0].named, NamedBy::order);
  ASSERT_EQ(stack.notes.size(), 1u);
  EXPECT_NE(stack.notes[0].find("names of 6 states are by order, not recorded"), std::string::npos);
  for (const TensorEntry& tensor : stack.tensors)
    EXPECT_EQ(formats::named_by(stack, tensor),
              tensor.state == "param" ? NamedBy::recorded : NamedBy::order);
  // What was a DCP has words for numbers, and not the model's order.
  Catalog words = made({{{8, 8}, {8, 8}, {8, 8}}, {{0, 1, 2}}, {0, 1, 2}, Order::of_a_torch_file});
  for (TensorEntry& tensor : words.tensors)
    if (tensor.path[1] == formats::PathItem("state"))
      tensor.path[2] = std::to_string(std::get<std::int64_t>(tensor.path[2]));
  EXPECT_EQ(names_of(words), (Texts{"opt.0", "opt.1", "opt.2"}));
  // Backwards, one shape tells that the order is not the model's: then it names nothing.
  Catalog backwards =
      made({{{9, 8}, {8, 8}, {8, 8}}, {{0, 1, 2}}, {2, 1, 0}, Order::of_a_torch_file});
  EXPECT_EQ(names_of(backwards), (Texts{"opt.0", "opt.1", "opt.2"}));
}

// A frozen parameter that the optimizer was given has a number and no state.
TEST(OptimizerNumbers, WithoutStateHideNothing) {
  const Made how{{{9, 8}, {8, 8}, {8, 8}, {3}}, {{0, 3, 1, 2}}, {0, 1, 2}, Order::of_a_torch_file};
  Catalog order = made(how);
  EXPECT_EQ(names_of(order), (Texts{"p0", "p1", "p2"}));
  EXPECT_EQ(order.groups[0].params, (Texts{"p0", "opt.3", "p1", "p2"}));
  Catalog shapes = made({{{3}, {4}, {2, 3}, {5}}, {{0, 1, 2}}, {3, 2}});
  EXPECT_EQ(names_of(shapes), (Texts{"p3", "p2"}));
  EXPECT_EQ(shapes.groups[0].params, (Texts{"p3", "p2", "opt.2"}));
  // Three of these four, and the frozen one may be any of them.
  Catalog any =
      made({{{8, 8}, {8, 8}, {8, 8}, {8, 8}}, {{0, 1, 2, 3}}, {0, 1, 2}, Order::of_a_torch_file});
  EXPECT_EQ(names_of(any), (Texts{"opt.0", "opt.1", "opt.2"}));
}

TEST(OptimizerNumbers, AreNeverWholeNumbers) {
  const Made how{{{}, {}, {8, 8}, {8, 8}}, {{0, 1, 2}}, {0, 2, 3}, Order::of_a_torch_file};
  Catalog either = made(how);
  EXPECT_EQ(names_of(either).front(), "opt.0");
  for (const DType dtype : {DType::i64, DType::u8, DType::boolean}) {
    Catalog catalog = made(how);
    catalog.tensors[1].dtype = dtype;
    EXPECT_EQ(names_of(catalog), (Texts{"p0", "p2", "p3"}));
  }
}

TEST(OptimizerNumbers, AreNotSharedByGroupsOrOptimizers) {
  // Each group alone would fit the two parameters in order.
  Catalog catalog =
      made({{{8, 8}, {8, 8}}, {{0, 1}, {2, 3}}, {0, 1, 0, 1}, Order::of_a_torch_file});
  EXPECT_EQ(names_of(catalog), (Texts{"opt.0", "opt.1", "opt.2", "opt.3"}));
  // Nor by one whose last number, 2, has no state, so that it gets no names itself.
  Catalog stateless = made({{{5}, {4}}, {{0}, {1, 2}}, {0, 0}});
  EXPECT_EQ(names_of(stateless), (Texts{"opt.0", "opt.1"}));
  // Nor by one that gets no names itself, as two parameters have the shape of its last number.
  Catalog nameless = made({{{5}, {4}, {4}}, {{0}, {1, 2}}, {0, 0, 1}});
  EXPECT_EQ(names_of(nameless), (Texts{"opt.0", "opt.1", "opt.2"}));
}

// SOAP's factors beside exp_avg; 0-d parameters beside counters.
TEST(OptimizerNumbers, AreMatchedByStatesThatHaveAParametersShape) {
  Catalog soap = made({{{7, 5}, {5, 7}, {5}}, {{0, 1, 2}}, {0, 1, 2}});
  for (const auto& [number, rows, columns] : {std::tuple(0, 7, 5), std::tuple(1, 5, 7)})
    for (const auto& [state, extent] : {std::pair("GG.0", rows), std::pair("Q.1", columns)}) {
      TensorEntry factor = soap.tensors.back();
      factor.path = {"opt", "state", std::int64_t{number}, state};
      factor.key = formats::joined(factor.path);
      factor.shape = Shape(2, static_cast<std::uint64_t>(extent));
      soap.tensors.push_back(std::move(factor));
    }
  EXPECT_EQ(names_of(soap), (Texts{"p0", "p1", "p2"}));
  Catalog scalar = made({{{}, {3}}, {{0, 1}}, {1, 0}});
  EXPECT_EQ(names_of(scalar), (Texts{"p1", "p0"}));
}

// Rows of a square matrix have the shape of its bias.
TEST(OptimizerNumbers, OfStatesThatAreSmallerThanTheirParametersStayNumbers) {
  Catalog factored = made({{{4, 4}, {4}}, {{0}, {1}}, {1, 1}});
  EXPECT_EQ(names_of(factored), (Texts{"opt.0", "opt.1"}));
}

TEST(SaidNames, AreCheckedAgainstCountsShapesAndTheModel) {
  const Made how{{{8, 8}, {8, 8}, {4}}, {{0, 1}, {2}}, {1, 0, 2}};
  Catalog catalog = made(how);
  EXPECT_EQ(names_of(catalog, {{}, {}, Texts{"p1", "p0", "p2"}}), (Texts{"p1", "p0", "p2"}));
  EXPECT_EQ(catalog.parts.optimizers[0].named, NamedBy::recorded);
  EXPECT_TRUE(catalog.notes.empty()) << catalog.notes.front();
  for (const auto& [wrong, why] : {std::pair(Texts{"p1", "p0"}, "2 lines, but optimizers number 3"),
                                   std::pair(Texts{"p1", "p1", "p2"}, "is there twice"),
                                   std::pair(Texts{"p1", "p2", "p0"}, "line 2, 'p2': is [4], but"),
                                   std::pair(Texts{"p1", "p0", "x"}, "is called so")}) {
    Catalog again = made(how);
    const auto refused = formats::name_contents(again, {{}, {}, wrong});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::usage);
    EXPECT_NE(refused.error().message.find(why), std::string::npos) << refused.error().message;
  }
}

TEST(SaidNames, NameTheNumbersOfFormatsThatAreNoStateDicts) {
  Catalog catalog;
  const auto add = [&](std::string name, std::string state, Shape shape) {
    TensorEntry tensor{.name = std::move(name), .state = std::move(state)};
    tensor.shape = std::move(shape);
    catalog.tensors.push_back(std::move(tensor));
  };
  add("a", "param", {3});
  add("b", "param", {3});
  add("opt.0", "exp_avg", {3});
  add("opt.1", "exp_avg", {3});
  catalog.param_steps = {{"opt.0", 4}};
  catalog.groups.push_back({"", {}, {"opt.0", "opt.1"}});
  Catalog wrong = catalog;
  EXPECT_FALSE(formats::say_names(wrong, Texts{"a", "c"}));
  EXPECT_FALSE(formats::say_names(wrong, Texts{"a"}));
  ASSERT_TRUE(formats::say_names(catalog, Texts{"b", "a"}));
  EXPECT_EQ(catalog.tensors[2].name, "b");
  EXPECT_EQ(catalog.tensors[3].name, "a");
  EXPECT_EQ(catalog.groups[0].params, (Texts{"b", "a"}));
  EXPECT_EQ(catalog.param_steps, (std::map<std::string, std::int64_t>{{"b", 4}}));
}

TEST(StepCounters, AreOneWhateverTheirType) {
  Catalog catalog = state_dict({{{"model", "a"}, {3}},
                                {{"model", "b"}, {2}},
                                {{"opt", "state", 0, "exp_avg"}, {3}},
                                {{"opt", "state", 1, "exp_avg"}, {2}}});
  add_group(catalog, {"opt"}, Value::of_list({Value::of_int(0), Value::of_int(1)}));
  add_value(catalog, {"opt", "state", 0, "step"}, Value::of_int(3));
  add_value(catalog, {"opt", "state", 1, "step"}, Value::of_real(4.0));
  add_value(catalog, {"opt", "state", 1, "lr"}, Value::of_real(0.5));
  named(catalog);
  EXPECT_EQ(catalog.param_steps, (std::map<std::string, std::int64_t>{{"a", 3}, {"b", 4}}));
  const auto echoed = std::ranges::count(catalog.values, true, &ValueEntry::echoed);
  EXPECT_EQ(echoed, 4);  // the group's two, and the counters
  Catalog flattened = state_dict({{{"w.0"}, {3}}, {{"optim.state.w.0.exp_avg"}, {3}}});
  add_value(flattened, {"optim.param_groups.w.0.lr"}, Value::of_real(0.1));
  add_value(flattened, {"optim.state.w.0.step"}, Value::of_int(7));
  add_value(flattened, {"optim.state.w.0.half"}, Value::of_int(1));
  named(flattened);
  EXPECT_EQ(flattened.param_steps, (std::map<std::string, std::int64_t>{{"w.0", 7}}));
  // What is no whole number counts nothing.
  for (const Value& other : {Value::of_real(2.5), Value::of_int(-1), Value::of_string("3")}) {
    Catalog odd = state_dict({{{"model", "a"}, {3}}, {{"opt", "state", "a", "exp_avg"}, {3}}});
    add_group(odd, {"opt"}, names({"a"}));
    add_value(odd, {"opt", "state", "a", "step"}, other);
    named(odd);
    EXPECT_TRUE(odd.param_steps.empty()) << to_json(other);
  }
}

TEST(TensorSettings, AreSettingsOfTheirGroups) {
  Catalog catalog = state_dict({{{"model", "a"}, {3}},
                                {{"opt", "state", "a", "exp_avg"}, {3}},
                                {{"opt", "param_groups", 0, "lr"}, {}}});
  add_value(catalog, {"opt", "param_groups", 0, "params"}, names({"a"}));
  ValueEntry read{"opt.param_groups.0.lr", {"opt", "param_groups", 0, "lr"}, Value::of_real(0.5)};
  ASSERT_TRUE(formats::name_contents(catalog, {}, {read}));
  ASSERT_EQ(catalog.groups.size(), 1u);
  ASSERT_EQ(catalog.groups[0].settings.size(), 1u);
  EXPECT_EQ(catalog.groups[0].settings[0].first, "lr");
  EXPECT_EQ(catalog.groups[0].settings[0].second.real, 0.5);
}

}  // namespace

}  // namespace ebb
