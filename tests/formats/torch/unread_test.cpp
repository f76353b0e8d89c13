// Tensors of torch.save files in forms that are not read: each named as what it is, none of them
// damage, and none hides what lies beside it.
#include <gtest/gtest.h>

#include <functional>

#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/torch_save/torch_save.h"
#include "tests/support/archives.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::PickleWriter;
using test_support::plain_tensor;
using test_support::tensor_arguments;
using test_support::wrapper_subclass;

using Write = std::function<void(PickleWriter&)>;

// One that keeps no tensors, of which it would be made (composite_test.cpp).
Write subclass(std::string module, std::string name) {
  return [=](PickleWriter& pickle) {
    wrapper_subclass(pickle, module, name, {4, 3},
                     [&] { pickle.dict([&] { pickle.entry("block_size", 256); }); });
  };
}

Write in_parameter(Write wrapped) {
  return [=](PickleWriter& pickle) {
    pickle.call("torch._utils", "_rebuild_parameter_with_state", [&] {
      wrapped(pickle);
      pickle.boolean(1);
      pickle.call("collections", "OrderedDict");
      pickle.dict([&] { pickle.entry("note", "mine"); });
    });
  };
}

// With a storage of its own, of another class than torch's, and what that keeps beside it.
void scaled(PickleWriter& pickle) {
  pickle.call("torch._tensor", "_rebuild_from_type_v2", [&] {
    pickle.global("torch._utils", "_rebuild_tensor_v2");
    pickle.global("acme.tensors", "Scaled");
    pickle.tuple([&] { tensor_arguments(pickle, "1", {4, 3}); });
    pickle.dict([&] { pickle.entry("scale", 3); });
  });
}

void made_by(PickleWriter& pickle, const char* function) {
  pickle.call("torch._utils", function, [&] { pickle.integer(1); });
}

struct Kind {
  std::string_view name;
  std::string_view what;
  std::string_view hint;
  Write write;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// {"model": {"w"}, "optimizer": {"state": {"w": {"exp_avg": ...}}}}
ByteVector file_with(const Write& exp_avg) {
  PickleWriter pickle;
  pickle.dict([&] {
    pickle.dict("model", [&] {
      pickle.string("w");
      plain_tensor(pickle, "0", {4, 3});
    });
    pickle.dict("optimizer", [&] {
      pickle.dict("state", [&] {
        pickle.dict("w", [&] {
          pickle.string("exp_avg");
          exp_avg(pickle);
        });
      });
    });
  });
  return test_support::archive_around(pickle.finish());
}

Result<std::unique_ptr<Checkpoint>> described(const ByteVector& file) {
  auto tree = std::make_shared<test_support::MemoryTree>("ck");
  tree->add("x.pt", file);
  return formats::describe_torch(std::move(tree));
}

class TorchUnread : public testing::TestWithParam<Kind> {};

TEST_P(TorchUnread, IsNamedAsWhatItIsAndHidesNothingElse) {
  const auto checkpoint = described(file_with(GetParam().write));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const Catalog& catalog = (*checkpoint)->catalog();
  ASSERT_EQ(catalog.tensors.size(), 1u);
  EXPECT_EQ(catalog.tensors[0].name, "w");
  EXPECT_TRUE(test_support::elements_of(**checkpoint, catalog.tensors[0]).has_value());
  ASSERT_EQ(catalog.unread.size(), 1u);
  const formats::UnreadEntry& unread = catalog.unread[0];
  EXPECT_EQ(unread.key, "optimizer.state.w.exp_avg");
  EXPECT_EQ(unread.name, "w");
  EXPECT_EQ(unread.state, "exp_avg");
  EXPECT_NE(unread.what.find(GetParam().what), std::string::npos) << unread.what;
  EXPECT_NE(unread.hint.find(GetParam().hint), std::string::npos) << unread.hint;
  EXPECT_TRUE(formats::unsafe_values(catalog).empty());
}

TEST_P(TorchUnread, IsUnsupportedAndNotCorruptWhereItAloneIsAskedFor) {
  PickleWriter pickle;
  GetParam().write(pickle);
  const auto graph = formats::PickleGraph::parse(pickle.finish(), "p");
  ASSERT_TRUE(graph.has_value());
  const auto tensor = formats::torch_tensor(*graph, graph->root());
  ASSERT_FALSE(tensor.has_value());
  EXPECT_EQ(tensor.error().code, Code::unsupported) << tensor.error().message;
  EXPECT_NE(tensor.error().message.find(GetParam().what), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TorchUnread,
    testing::Values(
        Kind{"DTensor", "one rank's rows of a sharded tensor", "full_tensor()",
             subclass("torch.distributed.tensor", "DTensor")},
        Kind{"OldDTensor", "one rank's rows of a sharded tensor", "full_tensor()",
             subclass("torch.distributed._tensor.api", "DTensor")},
        Kind{"ShardedTensor", "one rank's rows of a sharded tensor", "all ranks' files",
             subclass("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")},
        Kind{"OptimState8bit", "torchao's 8-bit state", "dequantize()",
             subclass("torchao.optim.subclass_8bit", "OptimState8bit")},
        Kind{"OptimState4bit", "torchao's 4-bit state", "dequantize()",
             subclass("torchao.prototype.low_bit_optim.subclass_4bit", "OptimState4bit")},
        Kind{"OptimStateFp8", "torchao's FP8 state", "dequantize()",
             subclass("torchao.optim.subclass_fp8", "OptimStateFp8")},
        Kind{"NF4Tensor", "class NF4Tensor (torchao)", "plain tensor",
             subclass("torchao.dtypes.nf4tensor", "NF4Tensor")},
        Kind{"Nobodys", "class Folded (acme)", "where acme is installed",
             subclass("acme.tensors", "Folded")},
        Kind{"InAParameter", "class Folded (acme)", "where acme is installed",
             in_parameter(subclass("acme.tensors", "Folded"))},
        Kind{"WithAStorage", "class Scaled (acme)", "where acme is installed", scaled},
        Kind{"Sparse", "a sparse tensor", "to_dense()",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_sparse_tensor"); }},
        Kind{"Quantized", "a quantized tensor", "dequantize()",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_qtensor"); }},
        Kind{"Nested", "a nested tensor", "to_padded_tensor()",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_nested_tensor"); }},
        Kind{"Meta", "without data", "materialized",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_meta_tensor_no_storage"); }},
        Kind{"FromNumpy", "numpy array", ".cpu()",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_device_tensor_from_numpy"); }},
        Kind{"NotYetMade", "made by torch._utils._rebuild_something_new", "plain tensor",
             [](PickleWriter& pickle) { made_by(pickle, "_rebuild_something_new"); }}),
    [](const auto& one) { return std::string(one.param.name); });

std::vector<std::string> unsafe_names(const Write& exp_avg) {
  const auto checkpoint = described(file_with(exp_avg));
  EBB_CHECK(checkpoint.has_value());
  std::vector<std::string> names;
  for (const auto& value : formats::unsafe_values((*checkpoint)->catalog()))
    names.push_back(value.name);
  return names;
}

// Torch makes a tensor of the class; anything else is another matter.
TEST(TorchUnreadNames, AreUnsafeWhereTheyAreMoreThanTheClassOfATensor) {
  using Unsafe = std::vector<std::string>;
  EXPECT_EQ(unsafe_names(subclass("acme.tensors", "Folded")), Unsafe());
  EXPECT_EQ(unsafe_names([](PickleWriter& pickle) {
              wrapper_subclass(pickle, "posix", "system", {4}, [&] {
                pickle.dict([&] {
                  pickle.string("x");
                  pickle.call("posix", "system", [&] { pickle.string("touch PWNED"); });
                });
              });
            }),
            Unsafe{"posix.system"});
  EXPECT_EQ(unsafe_names([](PickleWriter& pickle) {
              wrapper_subclass(pickle, "acme.tensors", "Folded", {4}, [&] {
                pickle.dict([&] {
                  pickle.string("how");
                  pickle.global("acme.tensors", "Folded");
                });
              });
            }),
            Unsafe{"acme.tensors.Folded"});
  EXPECT_EQ(unsafe_names([](PickleWriter& pickle) {
              pickle.call("torch._tensor", "_rebuild_from_type_v2", [&] {
                pickle.global("posix", "system");
                pickle.global("torch", "Tensor");
                pickle.tuple([&] { pickle.string("touch PWNED"); });
                pickle.none();
              });
            }),
            Unsafe{"posix.system"});
}

// {"w": ...} of opcodes.
Result<std::unique_ptr<Checkpoint>> described(test_support::PickleText& w) {
  const std::string text = w.raw("s").done();
  return described(test_support::archive_around(formats::view_of(text)));
}
test_support::PickleText begun() {
  test_support::PickleText pickle;
  pickle.raw("}").text("w");
  return pickle;
}
constexpr std::pair kSharded = {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor"};
constexpr std::pair kScaled = {"transformer_engine.pytorch.tensor.float8_tensor", "Float8Tensor"};

void member_of(test_support::PickleText& pickle, std::pair<const char*, const char*> type,
               const char* member) {
  pickle.global("__builtin__", "getattr").global(type.first, type.second).text(member);
  pickle.raw("\x86R");
}

// As Transformer Engine's classes are: a class method is asked for by name.
TEST(TorchUnreadNames, AMethodOfATensorClassMakesATensor) {
  auto pickle = begun();
  member_of(pickle, kScaled, "_make_in_reduce_ex");
  pickle.raw("(").number(1).raw("tR");
  const auto checkpoint = described(pickle);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  ASSERT_EQ((*checkpoint)->catalog().unread.size(), 1u);
  EXPECT_EQ((*checkpoint)->catalog().unread[0].what,
            "a tensor of class Float8Tensor (transformer_engine)");
  EXPECT_TRUE(formats::unsafe_values((*checkpoint)->catalog()).empty());
}

// A ShardedTensor that keeps what a member of its class makes.
test_support::PickleText keeping(const char* member) {
  auto pickle = begun();
  pickle.global("torch._tensor", "_rebuild_from_type_v2").raw("(");
  pickle.global("torch._utils", "_rebuild_wrapper_subclass")
      .global(kSharded.first, kSharded.second);
  pickle.raw("(").global(kSharded.first, kSharded.second).global("torch", "float32").raw("t(");
  member_of(pickle, kSharded, member);
  pickle.raw(")\x81ttR");
  return pickle;
}

// A class may lie inside its own.
TEST(TorchUnreadNames, AClassInsideATensorClassIsNoUnsafeName) {
  auto pickle = keeping("ProcessGroupState");
  const auto checkpoint = described(pickle);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().unread.size(), 1u);
  EXPECT_TRUE(formats::unsafe_values((*checkpoint)->catalog()).empty());
}

TEST(TorchUnreadNames, WhatPythonItselfGivesAClassIsUnsafeInsideOne) {
  auto pickle = keeping("__subclasses__");
  const auto checkpoint = described(pickle);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_FALSE(formats::unsafe_values((*checkpoint)->catalog()).empty());
}

TEST(TorchUnreadNames, OtherMembersAreUnsafe) {
  for (const auto& [type, member] : {std::pair{kSharded, "__subclasses__"},
                                     std::pair{std::pair{"acme.tensors", "Folded"}, "make"}}) {
    auto pickle = begun();
    member_of(pickle, type, member);
    pickle.raw(")R");
    const auto checkpoint = described(pickle);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_FALSE(formats::unsafe_values((*checkpoint)->catalog()).empty()) << member;
  }
}

// What torch's own classes add to elements is nothing.
TEST(TorchUnreadNames, ATensorOfTorchsOwnWithAttributesIsRead) {
  for (const auto& [module, name] :
       {std::pair{"torch", "Tensor"}, std::pair{"torch.nn.parameter", "Parameter"}}) {
    const auto checkpoint = described(file_with([&](PickleWriter& pickle) {
      pickle.call("torch._tensor", "_rebuild_from_type_v2", [&] {
        pickle.global("torch._utils", "_rebuild_tensor_v2");
        pickle.global(module, name);
        pickle.tuple([&] { tensor_arguments(pickle, "1", {4, 3}); });
        pickle.dict([&] { pickle.entry("_has_been_cloned", 1); });
      });
    }));
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    EXPECT_EQ((*checkpoint)->catalog().tensors.size(), 2u);
    EXPECT_TRUE((*checkpoint)->catalog().unread.empty());
  }
}

}  // namespace

}  // namespace ebb
