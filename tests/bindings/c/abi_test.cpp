// What callers were compiled against: the functions of the library and the sizes of its structs are
// those of bindings/c/abi.txt. A line that is added there is an addition; one that changes or goes
// is another EBB_ABI.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "tests/bindings/c/struct_sizes.h"
#include "tests/support/program.h"

namespace ebb::c {
namespace {

std::string exported() {
  const auto nm = test_support::run_program("/usr/bin/nm", {"-D", "--defined-only", EBB_LIBRARY});
  EXPECT_EQ(nm.exit, 0) << nm.err;
  std::set<std::string> names;
  std::istringstream lines(nm.out);
  for (std::string address, kind, name; lines >> address >> kind >> name;) names.insert(name);
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

TEST(CAbi, IsThatOfTheListInTheTree) {
  std::string found = "EBB_ABI " + std::to_string(ebb_abi()) + "\n" + exported();
  for (const struct_size* one = struct_sizes; one->name != nullptr; ++one)
    found += std::string(one->name) + " " + std::to_string(one->size) + "\n";
  EXPECT_EQ(found, test_support::text_of_file(EBB_ABI_LIST));
}

TEST(CAbi, TheLibraryIsWhatItsHeaderSays) {
  EXPECT_EQ(ebb_abi(), EBB_ABI);
  EXPECT_STREQ(ebb_version(), "0.1.0");
  char* json = nullptr;
  ASSERT_EQ(ebb_about(&json), EBB_DONE);
  for (const char* const part :
       {"\"abi\":1", "\"version\":\"0.1.0\"", "\"io_backend\":", "\"plugin\":", "\"dcp\"",
        "{\"name\":\"moonlight\",\"source\":", "\"scale\":\"match_rms_adamw\""})
    EXPECT_NE(std::string(json).find(part), std::string::npos) << json;
  ebb_free(json);
}

}  // namespace
}  // namespace ebb::c
