// The command line every program shares, as values.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/support/program.h"
#include "tools/cli/arguments.h"
#include "tools/cli/console.h"
#include "tools/cli/json.h"
#include "tools/cli/pages.h"
#include "tools/cli/text.h"
#include "tools/cli/transfer_line.h"

namespace ebb::tools {
namespace {

constexpr std::array<std::string_view, 2> kChoices = {"rows", "zero3"};
constexpr std::array kPositionals = {Positional{"PATH", "where"}};
constexpr std::array kFlags = {
    flag("G", "--json", "j"),
    flag("G", "-j, --threads N", "t").as(FlagType::count).or_else("2"),
    flag("G", "-M, --memory SIZE", "m").as(FlagType::size),
    flag("G", "-p, --partition P", "p").one_of(kChoices).or_else("rows"),
    flag("G", "-k, --key GLOB", "k").many(),
};
constexpr Program kProgram = {"prog", "does things", kPositionals, kFlags, {}, {}};

std::string refusal(const std::vector<std::string>& words) {
  const auto parsed = parse_command_line(kProgram, words);
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().code, Code::usage);
  return parsed.error().message + " | " + parsed.error().hint;
}

// The shell itself says which words it was given.
TEST(Text, AWordForTheShellIsTheWordThatItGets) {
  for (const std::string word : {"plain", "", "two words", "it's", "'", "$HOME `x` \\ \"",
                                 "awk '{print $1}'", "a*b?;&|<>"}) {
    const auto said =
        test_support::run_program("/bin/sh", {"-c", "printf '[%s]' " + shell_quoted(word)});
    EXPECT_EQ(said.exit, 0) << word;
    EXPECT_EQ(said.out, "[" + word + "]");
  }
  EXPECT_EQ(shell_quoted("build/a-1.b"), "build/a-1.b");
}

TEST(CommandLine, GivesEveryFlagItsValue) {
  const auto parsed = parse_command_line(
      kProgram, {"a/b", "--json", "-j", "3", "--memory=1.5KiB", "-k", "x*", "-k", "y"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  const Arguments& arguments = parsed->arguments;
  EXPECT_EQ(arguments.positional(0), "a/b");
  EXPECT_TRUE(arguments.has("json"));
  EXPECT_EQ(arguments.count("threads"), 3u);
  EXPECT_EQ(arguments.size("memory"), 1536u);
  EXPECT_EQ(arguments.texts("key"), (std::vector<std::string>{"x*", "y"}));
  EXPECT_FALSE(arguments.has("partition"));
}

TEST(CommandLine, SuggestsTheNearestFlag) {
  EXPECT_EQ(refusal({"--jsno", "p"}), "unknown flag --jsno | did you mean --json?");
  EXPECT_EQ(refusal({"--thread=3", "p"}), "unknown flag --thread | did you mean --threads?");
  EXPECT_EQ(refusal({"--qqqqqq", "p"}), "unknown flag --qqqqqq | prog -h shows all flags");
}

TEST(CommandLine, NeverGuessesAFlagFromItsBeginning) {
  EXPECT_EQ(refusal({"--mem", "4K", "p"}), "unknown flag --mem | did you mean --memory?");
}

TEST(CommandLine, RefusesValuesOfTheWrongKind) {
  EXPECT_EQ(refusal({"-j", "-1", "p"}),
            "--threads takes a whole number, not '-1' | prog -h shows all flags");
  EXPECT_EQ(refusal({"-j", "1e9", "p"}),
            "--threads takes a whole number, not '1e9' | prog -h shows all flags");
  EXPECT_EQ(refusal({"-M", "1GiBB", "p"}),
            "--memory takes a size such as 64KiB or 5GB, not '1GiBB' | prog -h shows all flags");
  EXPECT_EQ(refusal({"-p", "zero", "p"}),
            "--partition takes one of rows, zero3, not 'zero' | did you mean --partition zero3?");
  EXPECT_EQ(refusal({"--key=", "p"}), "--key needs a value | prog -h shows all flags");
}

TEST(CommandLine, RefusesWhatIsMissingRepeatedOrTooMuch) {
  EXPECT_EQ(refusal({}), "PATH is missing | prog PATH ...; prog -h shows all flags");
  EXPECT_EQ(refusal({"a", "b"}), "one argument too many: b | prog -h shows all flags");
  EXPECT_EQ(refusal({""}), "an empty path | prog -h shows all flags");
  EXPECT_EQ(refusal({"--json", "--json", "p"}), "--json is given twice | prog -h shows all flags");
  EXPECT_EQ(refusal({"p", "--threads"}), "--threads needs a value | prog -h shows all flags");
  EXPECT_EQ(refusal({"--json=3", "p"}), "--json takes no value | prog -h shows all flags");
}

TEST(CommandLine, APathMayBeginWithADashAfterTwoDashes) {
  const auto parsed = parse_command_line(kProgram, {"--", "--json"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->arguments.positional(0), "--json");
  EXPECT_FALSE(parsed->arguments.has("json"));
}

TEST(CommandLine, HelpComesInTwoLengths) {
  EXPECT_EQ(parse_command_line(kProgram, {"-h"})->wanted, Invocation::Wanted::brief_help);
  EXPECT_EQ(parse_command_line(kProgram, {"--help"})->wanted, Invocation::Wanted::full_help);
  EXPECT_EQ(parse_command_line(kProgram, {"-V"})->wanted, Invocation::Wanted::version);
}

TEST(CommandLine, WhatPeopleTryFirstIsUnderstood) {
  EXPECT_EQ(parse_command_line(kProgram, {"help"})->wanted, Invocation::Wanted::brief_help);
  EXPECT_EQ(parse_command_line(kProgram, {"-v"})->wanted, Invocation::Wanted::version);
  EXPECT_EQ(parse_command_line(kProgram, {"./help"})->arguments.positional(0), "./help");
}

TEST(Help, ListsFormatsAndExitCodesOnlyWhereTheyApply) {
  constexpr Program kPlain = {"bench", "measures", {}, {}, {}, {}, Formats::none, kPlainExits};
  const std::string plain = help_text(kPlain, HelpLength::full);
  EXPECT_EQ(plain.find("FORMATS"), std::string::npos) << plain;
  EXPECT_EQ(plain.find("  1  "), std::string::npos) << plain;
  EXPECT_EQ(plain.find("checkpoint"), std::string::npos) << plain;
  EXPECT_NE(plain.find("EXIT CODES\n  0  success\n  2  "), std::string::npos) << plain;
  const std::string version = version_text(kPlain);
  EXPECT_TRUE(version.starts_with("bench (Ebb) ")) << version;
  EXPECT_EQ(std::count(version.begin(), version.end(), '\n'), 1) << version;
  const std::string reading = help_text(kProgram, HelpLength::full);
  EXPECT_NE(reading.find("FORMATS\n  "), std::string::npos);
  EXPECT_EQ(reading.find("\n  1  "), std::string::npos) << reading;
  constexpr Program kJudge = {"judge", "checks", {}, {}, {}, {}, Formats::listed, kJudgeExits};
  EXPECT_NE(help_text(kJudge, HelpLength::full).find("\n  1  checked, and found different"),
            std::string::npos);
  EXPECT_NE(version_text(kProgram).find("\nreads   "), std::string::npos);
}

TEST(CommandLine, SizesHaveDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size("2K"), 2048u);
  EXPECT_EQ(parse_size("16777216TiB"), std::nullopt);
  EXPECT_EQ(parse_size("0x10"), std::nullopt);
  EXPECT_EQ(parse_size(""), std::nullopt);
  EXPECT_EQ(parse_size("-1"), std::nullopt);
  EXPECT_EQ(parse_size("1,5K"), std::nullopt);
}

TEST(ExitCodes, EveryKindOfFailureHasOne) {
  EXPECT_EQ(exit_for(Code::usage), Exit::usage);
  EXPECT_EQ(exit_for(Code::io), Exit::usage);
  EXPECT_EQ(exit_for(Code::corrupt), Exit::damaged);
  EXPECT_EQ(exit_for(Code::incomplete), Exit::damaged);
  EXPECT_EQ(exit_for(Code::limit), Exit::damaged);
  EXPECT_EQ(exit_for(Code::unsupported), Exit::unsupported);
  EXPECT_EQ(exit_for(Code::no_space), Exit::environment);
  EXPECT_EQ(exit_for(Code::cancelled), Exit::interrupted);
}

TEST(Text, CountsLayersLikePeople) {
  EXPECT_TRUE(natural_less("layers.2.w", "layers.10.w"));
  EXPECT_FALSE(natural_less("layers.10.w", "layers.2.w"));
  EXPECT_TRUE(natural_less("a", "a.b"));
}

TEST(Text, SizesAreInBinaryUnits) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(count_text(1234567), "1,234,567");
}

TEST(Text, NumbersAreWhatPrintfWrites) {
  EXPECT_EQ(decimal(2.0 / 3, 2), "0.67");
  EXPECT_EQ(decimal(-1e300, 0).size(), 302u);
  EXPECT_EQ(significant(0.000012345678, 3), "1.23e-05");
  EXPECT_EQ(significant(1e6, 5), "1e+06");
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(joined(kChoices), "rows, zero3");
}

TEST(Text, TablesEscapeWhatATerminalWouldObey) {
  Table table({{"name"}, {"n", Align::right}});
  table.add({"a\x1b[31m", "7"});
  EXPECT_EQ(table.text(), "  name       n\n  a\\x1b[31m  7\n");
}

TEST(Json, ValuesAreWrittenAsTheirTypesSay) {
  JsonWriter json;
  json.open_object().put("a", "x").put("b", true).put("c", std::optional<int>());
  json.put("d", std::optional(-1)).put("e", std::vector<std::string>{"y", "z"}).close_object();
  EXPECT_EQ(json.take(),
            "{\"a\": \"x\", \"b\": true, \"c\": null, \"d\": -1, \"e\": [\"y\", \"z\"]}\n");
}

TEST(Json, CommasStandBetweenValuesOnly) {
  JsonWriter json;
  json.open_object().key("a").open_list().number(1).number(2).close_list();
  json.key("b").open_object().close_object().key("c").null().close_object();
  EXPECT_EQ(json.take(), "{\"a\": [1, 2], \"b\": {}, \"c\": null}\n");
}

TEST(CommandLine, APathThatIsLeftOutIsTheOneOfTheTable) {
  static constexpr std::array kHere = {Positional{"PATH", "where", "."}};
  constexpr Program kOptional = {"prog", "does things", kHere, kFlags, {}, {}};
  const auto parsed = parse_command_line(kOptional, {"--json"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->arguments.positional(0), ".");
  EXPECT_EQ(shape_of(kOptional, " [FLAGS]"), "prog [FLAGS] [PATH]");
}

// The shell itself says what it would offer.
TEST(Completion, OfBashOffersFlagsAndTheirWords) {
  const std::string script = completion_script(kProgram, "bash");
  const auto offered = [&](const std::string& words, int at) {
    const auto said = test_support::run_program(
        "/bin/bash", {"-c", script + "\nCOMP_WORDS=(prog " + words + "); COMP_CWORD=" +
                                std::to_string(at) + "; _prog 2>&1; echo \"${COMPREPLY[*]}\""});
    EXPECT_EQ(said.err, "");
    return said.out;
  };
  EXPECT_EQ(offered("--me", 1), "--memory\n");
  EXPECT_EQ(offered("--partition ''", 2), "rows zero3\n");
  EXPECT_EQ(offered("-p z", 2), "zero3\n");
  EXPECT_EQ(offered("--", 1),
            "--json --threads --memory --partition --key --help --version --completion --man\n");
  EXPECT_EQ(offered("pa", 1), "\n");  // a path: the shell's own
}

TEST(Completion, OfZshSaysWhatEachFlagTakes) {
  const std::string script = completion_script(kProgram, "zsh");
  for (const std::string_view line : {"#compdef prog\n", "  --json'[j]'",
                                      "  '(-p --partition)'{-p+,--partition=}'[p]:P:(rows zero3)'",
                                      "  '*'{-k+,--key=}'[k]:GLOB:_files'", "  '1:PATH:_files'"})
    EXPECT_NE(script.find(line), std::string::npos) << line << "\n" << script;
}

TEST(Manual, HasEveryFlagAndNoRequestOfItsWords) {
  static constexpr std::array kOdd = {
      flag("G", "-d, --dot WORD", ".so /etc/passwd", "'quoted' a-b \\n")};
  const std::string page = manual_page({"prog", "does things", kPositionals, kOdd, {}, {}});
  EXPECT_NE(page.find(".TP\n\\fB\\-d\\fR, \\fB\\-\\-dot\\fR \\fIWORD\\fR\n\\&.so /etc/passwd\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("\\&'quoted' a\\-b \\en\n"), std::string::npos) << page;
}

// What somebody reads meanwhile: programs a document a line, nobody else anything.
TEST(Transfer, IsToldToProgramsAndNotToTheQuiet) {
  const auto said = [](bool quiet) {
    testing::internal::CaptureStderr();
    Console console("prog");  // behind that: it looks whether stderr is a terminal
    console.speak_json();
    if (quiet) console.be_quiet();
    TransferLine line(console, "reading");
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    line.now({.bytes = 1, .of = 4});
    line.now({.bytes = 2, .of = 4});  // too soon
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(false),
            "{\"schema\": \"ebb.progress/1\", \"doing\": \"reading\", \"bytes\": 1, \"of\": 4}\n");
  EXPECT_EQ(said(true), "");
}

}  // namespace
}  // namespace ebb::tools
