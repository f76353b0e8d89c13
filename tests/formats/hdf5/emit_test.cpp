// What the HDF5 writer plans, as far as bytes tell without the library; tests/tools and
// tests/judges let the library read it.
#include <gtest/gtest.h>

#include <string>

#include "ebb/formats/hdf5/file_image.h"
#include "ebb/formats/hdf5/hdf5.h"
#include "ebb/formats/hdf5/messages.h"
#include "ebb/formats/hdf5/superblock.h"

namespace ebb {

namespace {

using formats::hdf5::FileImage;

// From the author's own driver (lookup3.c, driver5) and the empty text.
TEST(Hdf5Lookup3, GivesTheNumbersOfItsAuthor) {
  EXPECT_EQ(formats::hdf5::lookup3({}), 0xdeadbeefu);
  EXPECT_EQ(formats::hdf5::lookup3(formats::view_of("Four score and seven years ago")),
            0x17770551u);
}

Catalog of_tensors(std::vector<std::pair<std::string, std::string>> names, Shape shape) {
  Catalog catalog;
  for (auto& [name, state] : names) {
    TensorEntry tensor{.name = std::move(name), .state = std::move(state)};
    tensor.shape = shape;
    catalog.tensors.push_back(std::move(tensor));
  }
  return catalog;
}

Result<EmitPlan> planned(const Catalog& content, Policy policy, std::uint32_t world) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  const auto layout = Layout::make({.policy = policy, .mesh = {world, 1}}, std::move(shapes));
  EBB_CHECK(layout.has_value());
  return formats::emit_hdf5({content, *layout});
}

const ByteVector& head_of(const OutputFile& file) {
  return std::get<ByteVector>(file.fragments.front().data);
}

// The text is somewhere in the metadata of the file.
bool mentions(const OutputFile& file, std::string_view text) {
  return formats::text_of(head_of(file)).find(text) != std::string_view::npos;
}

TEST(Hdf5Emit, MakesAFileThatEndsWhereItsSuperblockSays) {
  Catalog content = of_tensors({{"w", "master"}, {"big", "param"}, {"n", "step"}}, {4, 3});
  content.tensors[1].shape = {64, 64};
  content.tensors[2].shape = {};
  const auto plan = planned(content, Policy::replicated, 1);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->files.size(), 1u);
  const OutputFile& file = plan->files.front();
  EXPECT_EQ(file.name, "state.h5");
  ByteVector bytes = head_of(file);
  bytes.resize(file.size);
  const auto block = formats::hdf5::read_superblock(formats::MemorySource("state.h5", bytes));
  ASSERT_TRUE(block.has_value()) << block.error().message;
  EXPECT_EQ(block->version, 2);
  EXPECT_EQ(block->end, file.size);
  ASSERT_EQ(file.fragments.size(), 4u);
  std::uint64_t end = head_of(file).size();
  for (std::size_t i = 1; i < 4; ++i) {
    const auto& data = std::get<TensorData>(file.fragments[i].data);
    EXPECT_EQ(file.fragments[i].offset % (data.tensor == 1 ? 4096 : 64), 0u);
    EXPECT_GE(file.fragments[i].offset, end);
    end = file.fragments[i].offset + formats::volume(data.box.extent) * 4;
  }
  EXPECT_EQ(end, file.size);
}

TEST(Hdf5Emit, GivesEveryRankAFileAndOneThatShowsThemAll) {
  const Catalog content = of_tensors({{"w", "master"}, {"v", "master"}}, {5, 3});
  const auto plan = planned(content, Policy::rows, 3);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->files.size(), 3u);
  ASSERT_EQ(plan->commit_files.size(), 1u);
  std::uint64_t elements = 0;
  for (const auto& file : plan->files) {
    EXPECT_TRUE(mentions(plan->commit_files[0], file.name));
    EXPECT_TRUE(mentions(file, "global_shape"));
    for (const auto& fragment : file.fragments)
      if (const auto* data = std::get_if<TensorData>(&fragment.data))
        elements += formats::volume(data->box.extent);
  }
  EXPECT_EQ(elements, 30u);
  EXPECT_EQ(plan->commit_files[0].fragments.size(), 1u) << "it holds no elements";
  const auto copies = planned(content, Policy::replicated, 3);
  ASSERT_TRUE(copies.has_value());
  EXPECT_EQ(copies->files.size(), 1u) << "one copy is enough";
}

// A path that is none, or that another tensor has, becomes a number; the attributes say the rest.
TEST(Hdf5Emit, FindsAPlaceForEveryName) {
  const Catalog content = of_tensors({{"a", "b"},
                                      {"a/b", "c"},
                                      {"", "param"},
                                      {"x//y", "param"},
                                      {"..", "param"},
                                      {"a", "b"},
                                      {std::string(2000, 'n'), "param"}},
                                     {2});
  const auto plan = planned(content, Policy::rows, 2);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_TRUE(plan->dropped.empty());
  const auto& file = plan->commit_files.at(0);
  for (const std::string_view name : {"#1", "#4", "#5", "#6"}) EXPECT_TRUE(mentions(file, name));
  EXPECT_FALSE(mentions(file, "#0"));
}

TEST(Hdf5Emit, ListsWhatItCannotHold) {
  Catalog content = of_tensors({{"a", "param"}, {"b", "param"}, {"c\0d", "param"}}, {2});
  content.tensors[2].name = std::string("c\0d", 3);
  content.tensors[0].dtype = DType::f4;
  content.tensors[1].shape = Shape(33, 1);
  const auto plan = planned(content, Policy::replicated, 1);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->dropped.size(), 3u);
  EXPECT_EQ(plan->omitted, (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST(Hdf5Attributes, HoldNumbersTextsAndListsOfOneKind) {
  using formats::hdf5::fits_attribute;
  const auto list = [](std::vector<Value> items) { return Value::of_list(std::move(items)); };
  EXPECT_TRUE(fits_attribute("a", Value::of_int(1)));
  EXPECT_TRUE(fits_attribute("a", Value::of_string("")));
  EXPECT_TRUE(fits_attribute("a", list({Value::of_real(1), Value::of_real(2)})));
  EXPECT_FALSE(fits_attribute("a", list({Value::of_real(1), Value::of_int(2)})));
  EXPECT_FALSE(fits_attribute("a", list({})));
  EXPECT_FALSE(fits_attribute("a", Value{}));
  EXPECT_FALSE(fits_attribute("", Value::of_int(1)));
  EXPECT_FALSE(fits_attribute("a", Value::of_string(std::string("x\0y", 3))));
  EXPECT_FALSE(fits_attribute("a", list(std::vector<Value>(10'000, Value::of_int(1)))))
      << "more than an attribute's 64 KiB";
}

TEST(FileImage, KeepsGroupsAndDatasetsApart) {
  FileImage image;
  const auto group = image.group({"state", "w"});
  ASSERT_TRUE(group.has_value());
  ASSERT_TRUE(image.dataset(*group, "master", DType::bf16, {2, 3}).has_value());
  EXPECT_FALSE(image.dataset(*group, "master", DType::bf16, {2, 3}).has_value());
  EXPECT_FALSE(image.group({"state", "w", "master"}).has_value());
  EXPECT_EQ(image.group({"state", "w"}), group);
}

}  // namespace

}  // namespace ebb
