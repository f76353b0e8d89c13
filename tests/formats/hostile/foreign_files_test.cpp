// What lies where a checkpoint's file should be, called by its name.
#include <gtest/gtest.h>

#include "ebb/formats/describe.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using test_support::MemoryTree;

constexpr std::string_view kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 4976698672\n";

Error refusal_of(const char* root, const char* name, std::string_view content) {
  auto tree = std::make_shared<MemoryTree>(root);
  tree->add(name, content);
  const auto checkpoint = formats::describe(std::move(tree));
  return checkpoint ? Error{} : checkpoint.error();
}

TEST(ForeignFiles, AGitLfsPointerIsCalledOne) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin", "state.h5", "weights"}) {
    const Error error = refusal_of("repo", name, kPointer);
    EXPECT_EQ(error.message, std::string("repo/") + name +
                                 " is a git-lfs pointer: the file that it stands for was not "
                                 "fetched");
    EXPECT_EQ(error.hint, "git lfs pull");
  }
  EXPECT_TRUE(refusal_of("repo/model.safetensors", "model.safetensors", kPointer)
                  .message.starts_with("repo/model.safetensors is a git-lfs pointer"));
}

TEST(ForeignFiles, APointerAmongFilesIsFound) {
  auto tree = std::make_shared<MemoryTree>("repo");
  tree->add("model-00001-of-00002.safetensors", kPointer);
  tree->add("model-00002-of-00002.safetensors", kPointer);
  tree->add("model.safetensors.index.json",
            R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
  tree->add("README.md", "<html>");
  const auto checkpoint = formats::describe(std::move(tree));
  ASSERT_FALSE(checkpoint);
  EXPECT_TRUE(checkpoint.error().message.starts_with("repo/model-00001-of-00002.safetensors is a "))
      << checkpoint.error().message;
}

TEST(ForeignFiles, APageIsCalledOne) {
  for (const char* page :
       {"<!DOCTYPE html>\n<html>", "\n  <html lang=en>", "<?xml version='1.0'?>"})
    EXPECT_NE(refusal_of("d", "model.safetensors", page)
                  .message.find("d/model.safetensors is a web page"),
              std::string::npos)
        << page;
}

// What is wrong with a real file stays what is said.
TEST(ForeignFiles, AnotherFailureIsToldAsItIs) {
  EXPECT_EQ(refusal_of("d", "model.safetensors", "1234").message.find("web page"),
            std::string::npos);
}

}  // namespace

}  // namespace ebb
