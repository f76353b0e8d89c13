#include "ebb/formats/hdf5/description.h"

#include <gtest/gtest.h>

namespace ebb {

namespace {

using formats::hdf5::decode;
using formats::hdf5::Description;
using formats::hdf5::encode;

TEST(Hdf5Description, SurvivesThePipe) {
  Description description;
  description.library = "1.10.8";
  description.notes = {"a note"};
  Value list;
  list.kind = Value::Kind::list;
  list.items = {Value::of_int(-1), Value::of_bool(true), Value::of_string("\xff\n")};
  description.groups = {{"/", {{"names", list}}}};
  formats::hdf5::Dataset dataset{.path = "/w"};
  dataset.type.words = "float";
  dataset.shape = {3, 4};
  dataset.filters = {{32015, {3}}};
  dataset.chunks = {{4096, 17, 2}};
  dataset.mappings = {{.file = "r.h5", .dataset = "w"}};
  dataset.text = Value::of_string("t");
  description.datasets = {dataset};
  description.links = {{formats::hdf5::Link::Kind::external, "/l", "/t", "f.h5"}};
  const auto back = decode(encode(description));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(encode(*back), encode(description));
  EXPECT_EQ(back->datasets[0].chunks[0].bytes, 17u);
  EXPECT_EQ(back->groups[0].attributes[0].value.items[2].text, "\xff\n");
}

TEST(Hdf5Description, CountsBeyondTheBytesTakeNoMemory) {
  ByteVector bytes = encode({});
  // The first count behind the magic and the empty library name is that of the notes.
  for (std::size_t i = 16; i < 24; ++i) bytes[i] = std::byte{0x7f};
  EXPECT_FALSE(decode(bytes));
}

TEST(Hdf5Description, ValuesNestedWithoutEndAreRefused) {
  Value value;
  for (int i = 0; i < 1000; ++i) {
    Value outer;
    outer.kind = Value::Kind::list;
    outer.items.push_back(std::move(value));
    value = std::move(outer);
  }
  Description description;
  description.groups = {{"/", {{"deep", value}}}};
  EXPECT_FALSE(decode(encode(description)));
}

}  // namespace

}  // namespace ebb
