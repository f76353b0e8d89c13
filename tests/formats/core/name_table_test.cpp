#include "formats/core/name_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using formats::NameTable;
using formats::SeenKeys;

std::vector<std::string> many_names() {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) names.push_back("model.layers." + std::to_string(i) + ".weight");
  return names;
}

TEST(NameTable, NumbersNamesInTheOrderTheyComeAndFindsEachAgain) {
  const std::vector<std::string> names = many_names();
  NameTable table;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    const auto [number, fresh] = table.insert(names[i]);
    EXPECT_EQ(number, i);
    EXPECT_TRUE(fresh);
  }
  ASSERT_EQ(table.size(), names.size());
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(table.find(names[i]), i);
    const auto [number, fresh] = table.insert(std::string(names[i]));
    EXPECT_EQ(number, i);
    EXPECT_FALSE(fresh);
  }
  EXPECT_EQ(table.find("model.layers.5000.weight"), std::nullopt);
  EXPECT_EQ(table.find(""), std::nullopt);
}

TEST(NameTable, AnEmptyNameIsANameAndReservedRoomHoldsNone) {
  NameTable table;
  EXPECT_EQ(table.find(""), std::nullopt);
  table.reserve(1000);
  EXPECT_EQ(table.find(""), std::nullopt);
  EXPECT_TRUE(table.insert("").fresh);
  EXPECT_EQ(table.find(""), 0u);
}

TEST(SeenKeys, NoticesARepeatAmongFewKeysAndAmongMany) {
  const std::vector<std::string> names = many_names();
  SeenKeys seen;
  for (const std::string& name : names) {
    EXPECT_TRUE(seen.insert(name));
    EXPECT_FALSE(seen.insert(name));
    EXPECT_FALSE(seen.insert(names.front()));
  }
}

}  // namespace
