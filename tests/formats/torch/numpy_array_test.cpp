// Arrays of numpy's among values: read with their bytes, written as numpy pickles them, tensors
// where a loader takes no arrays.
#include "ebb/formats/torch/numpy_array.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb {
namespace {

using formats::PickleGraph;
using formats::PickleWriter;

struct Pickled {
  const char* module = "numpy._core.multiarray";
  const char* dtype = "u4";
  const char* order = "<";
  std::int64_t fortran = 0;
  std::int64_t extent = 2;
};

Value read(PickleWriter& pickle) {
  const auto graph = PickleGraph::parse(pickle.finish(), "p");
  EXPECT_TRUE(graph);
  const auto value = formats::value_of(*graph, graph->root(), nullptr);
  EXPECT_TRUE(value) << value.error().message;
  return *value;
}

// As numpy 1 and 2 pickle an array of [1, 0xff000002].
Value read(const Pickled& how) {
  const std::byte bytes[8] = {std::byte{1}, {}, {}, {}, std::byte{2}, {}, {}, std::byte{255}};
  PickleWriter pickle;
  pickle.call(how.module, "_reconstruct", [&] {
    pickle.global("numpy", "ndarray");
    pickle.tuple([&] { pickle.integer(0); });
    pickle.bytes(formats::view_of("b"));
  });
  pickle.build([&] {
    pickle.tuple([&] {
      pickle.integer(1);
      pickle.tuple([&] { pickle.integer(how.extent); });
      pickle.call("numpy", "dtype", [&] {
        pickle.string(how.dtype);
        pickle.boolean(0);
        pickle.boolean(1);
      });
      pickle.build([&] {
        pickle.tuple([&] {
          pickle.integer(3);
          pickle.string(how.order);
          for (int i = 0; i < 3; ++i) pickle.none();
          for (const int number : {-1, -1, 0}) pickle.integer(number);
        });
      });
      pickle.boolean(how.fortran);
      pickle.bytes(bytes);
    });
  });
  return read(pickle);
}

TEST(NumpyArray, ComesBackAsItWasPickled) {
  for (const char* module : {"numpy._core.multiarray", "numpy.core.multiarray"}) {
    const Value array = read({.module = module});
    ASSERT_TRUE(formats::is_numpy_array(array)) << to_json(array);
    EXPECT_EQ(array.text, std::string(module) + "._reconstruct");
    EXPECT_EQ(array.items[1].raw.size(), 8u);
    PickleWriter again;
    formats::write_numpy_array(again, array);
    EXPECT_EQ(to_json(read(again)), to_json(array));
    const auto json = formats::read_value_json(formats::value_json(array), "here");
    ASSERT_TRUE(json) << json.error().message;
    EXPECT_TRUE(formats::is_numpy_array(*json)) << "formats that keep values as text";
  }
}

// Anything else stays a name, as all objects of Python's.
TEST(NumpyArray, OfAnotherFormIsAName) {
  for (const Pickled& how :
       {Pickled{.dtype = "O8"}, Pickled{.order = ">"}, Pickled{.fortran = 1}, Pickled{.extent = 3},
        Pickled{.extent = -2}, Pickled{.extent = std::int64_t{1} << 62}}) {
    const Value array = read(how);
    EXPECT_FALSE(formats::is_numpy_array(array));
    EXPECT_EQ(to_json(array), R"({"$object": "numpy._core.multiarray._reconstruct"})");
  }
}

TEST(NumpyArray, IsATensorForWeightsOnly) {
  Catalog content;
  Value kept;
  kept.kind = Value::Kind::tuple;
  kept.items = {Value::of_string("MT19937"), read(Pickled{})};
  content.values.push_back({"rng", {"rng"}, kept});
  const auto layout = Layout::make({}, {});
  ASSERT_TRUE(layout);
  const auto plan = formats::emit_torch({.content = content, .layout = *layout});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_TRUE(plan->dropped.empty());
  ASSERT_EQ(plan->notes.size(), 1u);
  EXPECT_NE(plan->notes.front().find("\"rng\": numpy's array becomes a tensor"), std::string::npos);
  const auto tensors = formats::with_tensors(kept);
  ASSERT_TRUE(tensors);
  EXPECT_EQ(tensors->items[1].kind, Value::Kind::tensor);
  EXPECT_EQ(tensors->items[1].dtype, DType::u32);
  const auto job =
      formats::emit_torch({.content = content, .layout = *layout}, formats::Loader::with_arrays);
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_TRUE(job->notes.empty());
}

}  // namespace
}  // namespace ebb
