// Names from checkpoints on their way to terminals and into JSON.
#include <gtest/gtest.h>

#include <string>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

// Everything that turns the direction of writing, breaks lines or talks to the terminal.
constexpr const char* kSteering[] = {"\xd8\x9c",                      // U+061C
                                     "\xe2\x80\x8e",                  // U+200E
                                     "\xe2\x80\x8f", "\xe2\x80\xa8",  // U+2028
                                     "\xe2\x80\xa9", "\xe2\x80\xaa",  // U+202A
                                     "\xe2\x80\xab", "\xe2\x80\xac", "\xe2\x80\xad",
                                     "\xe2\x80\xae",  // U+202E, which shows what follows backwards
                                     "\xe2\x81\xa6",  // U+2066
                                     "\xe2\x81\xa7", "\xe2\x81\xa8", "\xe2\x81\xa9",
                                     "\xc2\x85",     "\xc2\x9b"};  // C1: next line, CSI

TEST(Text, WhatSteersATerminalIsEscaped) {
  for (const char* one : kSteering) {
    const std::string name = std::string("a") + one + "b";
    for (const std::string& safe : {printable(name), json_string(name)})
      for (const char c : safe) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << safe;
  }
  EXPECT_EQ(printable("exe.\xe2\x80\xaetxt"), "exe.\\xe2\\x80\\xaetxt");
  EXPECT_EQ(json_string("exe.\xe2\x80\xaetxt"), "\"exe.\\u202etxt\"");
  EXPECT_EQ(json_string("\xc2\x9b"), "\"\\u009b\"");
  EXPECT_EQ(json_string("\xd8\x9c"), "\"\\u061c\"");
}

TEST(Text, BytesThatAreNoUtf8AreEscaped) {
  for (int byte = 0x80; byte < 0x100; ++byte) {
    const std::string name = std::string("a") + static_cast<char>(byte) + "b";
    for (const char c : printable(name)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << byte;
    EXPECT_EQ(json_string(name),
              "\"a\xef\xbf\xbd"
              "b\"")
        << byte;
  }
}

TEST(Text, LettersOfEveryScriptStay) {
  const std::string name =
      "gr\xc3\xb6\xc3\x9f"
      "e_\xce\xbb \xd7\xa9 \xe2\x82\xac \xe2\x80\xa6 \xf0\x9f\x99\x82";
  EXPECT_EQ(printable(name), name);
  EXPECT_EQ(json_string(name), "\"" + name + "\"");
}

}  // namespace
}  // namespace ebb::formats
