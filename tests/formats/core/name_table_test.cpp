#include "ebb/formats/core/name_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/cost.h"

namespace ebb {

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

// Names of 8 bytes that libstdc++'s hash, which is MurmurHash64A with a known seed, gives the same
// low half: what anybody can put into a file.
std::vector<std::string> colliding_names(std::uint64_t count) {
  constexpr std::uint64_t kFactor = 0xc6a4a7935bd1e995u;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  const auto mixed = [](std::uint64_t value) { return value ^ (value >> 47); };
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t hash = mixed(mixed(i << 32 | 0x5eed5eed) * inverse);
    const std::uint64_t data = (hash * inverse) ^ (0xc70f6907u ^ 8 * kFactor);
    const std::uint64_t name = mixed(data * inverse) * inverse;
    names.emplace_back(reinterpret_cast<const char*>(&name), sizeof(name));
  }
  return names;
}

TEST(NameTable, NamesMadeToCollideCostLittleAndAreFoundAgain) {
  const std::vector<std::string> names = colliding_names(60000);
  const std::hash<std::string_view> hash;
  if (static_cast<std::uint32_t>(hash(names[0])) != static_cast<std::uint32_t>(hash(names[1])))
    GTEST_SKIP() << "this library hashes in another way";
  std::uint32_t wrong = 0;
  const auto work = [&] {
    NameTable table;
    for (std::uint32_t i = 0; i < names.size(); ++i) {
      const auto [number, fresh] = table.insert(names[i]);
      wrong += number != i || !fresh ? 1 : 0;
    }
    for (std::uint32_t i = 0; i < names.size(); ++i) {
      wrong += table.find(names[i]) != i ? 1 : 0;
      wrong += table.insert(names[i]).fresh ? 1 : 0;
    }
    wrong += table.size() != names.size() || table.find("another") ? 1 : 0;
  };
  EXPECT_LT(test_support::cost_of(work).seconds, 1.0);
  work();
  EXPECT_EQ(wrong, 0u);
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

}  // namespace ebb
