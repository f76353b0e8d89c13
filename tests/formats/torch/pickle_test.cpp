// The restricted pickle machine against hostile and odd streams (P01-P32 of tests/acceptance.md).
#include <gtest/gtest.h>

#include <array>

#include <algorithm>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/torch/archive.h"

namespace ebb {

namespace {

using formats::PickleGraph;
using formats::PickleKind;
using std::string_view_literals::operator""sv;

Result<PickleGraph> parse(std::string_view stream) {
  const ByteView bytes = formats::view_of(stream);
  return PickleGraph::parse({bytes.begin(), bytes.end()}, "p");
}

// The message, "" when the stream is accepted.
std::string refusal(std::string_view stream) {
  const auto graph = parse(stream);
  return graph ? "" : graph.error().message;
}

std::string json(std::string_view stream) {
  const auto graph = parse(stream);
  if (!graph) return graph.error().message;
  const auto value = value_of(*graph, graph->root(), nullptr);
  return value ? to_json(*value) : value.error().message;
}

// A stream of protocol 2.
std::string p2(std::string_view body) {
  std::string stream(2 + body.size(), '\x80');
  stream[1] = 2;
  std::copy(body.begin(), body.end(), stream.begin() + 2);
  return stream;
}

TEST(Pickle, P01EmptyStreamIsRefused) { EXPECT_EQ(refusal(""), "p:0: the pickle is empty"); }

TEST(Pickle, P02TextProtocolIsUnsupported) {
  const auto graph = parse("(lp0\n.");
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, Code::unsupported);
  EXPECT_EQ(graph.error().message,
            "p:0: no PROTO opcode: a pickle of protocol 0 or 1, or no pickle at all");
}

TEST(Pickle, P03FutureProtocolIsUnsupported) {
  EXPECT_EQ(refusal("\x80\x09N."sv), "p:0: pickle protocol 9; this version reads 2 to 5");
}

TEST(Pickle, P04CutInsideAStringIsRefusedWithTheOffset) {
  EXPECT_EQ(refusal(p2("X\x05\0\0\0ab"sv)), "p:2: a str of 5 bytes, but the pickle ends at byte 9");
}

TEST(Pickle, P05StringOfTwoToThe63IsRefused) {
  EXPECT_EQ(refusal("\x80\x04\x8d\0\0\0\0\0\0\0\x80."sv),
            "p:2: a str of 9223372036854775808 bytes, but the pickle ends at byte 12");
}

TEST(Pickle, P06BytesLargerThanTheFileAreRefusedWithoutAllocating) {
  EXPECT_EQ(refusal("\x80\x04\x8e\0\0\0\xfa\0\0\0\0."sv),
            "p:2: a bytes of 4194304000 bytes, but the pickle ends at byte 12");
}

TEST(Pickle, P07AppendsWithoutMarkIsRefused) {
  EXPECT_EQ(refusal(p2("]e.")), "p:3: no MARK was set");
}

TEST(Pickle, P08CallOnAnEmptyStackIsRefused) {
  EXPECT_EQ(refusal(p2("R.")), "p:2: a call finds nothing on the stack");
}

TEST(Pickle, P09CallsStayInertAndIndexesRefuseThemByName) {
  const auto graph = parse(p2("cposix\nsystem\nX\x02\0\0\0id\x85R."sv));
  ASSERT_TRUE(graph.has_value());
  const auto value = value_of(*graph, graph->root(), nullptr);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->kind, Value::Kind::object);
  EXPECT_EQ(value->text, "posix.system");
  const auto known = require_known_globals(*graph);
  ASSERT_FALSE(known.has_value());
  EXPECT_EQ(known.error().message,
            "p:2: the pickle names \"posix.system\", which no framework writes here; nothing was "
            "executed");
}

// What is called and dropped again leaves no value behind, but Python would have called it.
TEST(Pickle, P09ACallWhoseResultIsDroppedIsRefused) {
  const auto graph = parse(p2("cposix\nsystem\nX\x02\0\0\0id\x85R0}."sv));
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  const auto value = value_of(*graph, graph->root(), nullptr);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(formats::unsafe_part(*value), "");
  const auto hidden = refuse_hidden_calls(*graph, {&*value});
  ASSERT_FALSE(hidden.has_value());
  EXPECT_NE(hidden.error().message.find("p:2: the pickle names \"posix.system\""),
            std::string::npos)
      << hidden.error().message;
}

// getattr is how a member of an enumeration is spelled, and how anything else is reached.
TEST(Pickle, P09KnownNamesInAStrangersHandsAreToldToo) {
  const auto unsafe = [](std::string_view stream) -> std::string {
    const auto graph = parse(stream);
    if (!graph) return graph.error().message;
    const auto value = value_of(*graph, graph->root(), nullptr);
    return value ? std::string(formats::unsafe_part(*value)) : value.error().message;
  };
  EXPECT_EQ(unsafe(p2("c__builtin__\ngetattr\ncsignal\nSignals\nX\x07\0\0\0SIGTERM\x86R."sv)), "");
  EXPECT_EQ(unsafe(p2("c__builtin__\ngetattr\ncargparse\nNamespace\nX\x01\0\0\0x\x86R."sv)),
            formats::kCallOfAResult);
  EXPECT_EQ(unsafe(p2("cdatetime\ndate\n)R)R."sv)), formats::kCallOfAResult);
  EXPECT_EQ(unsafe(p2("ccollections\ndeque\n]ca.b\nrun\n)Ra\x85R."sv)), "a.b.run");
}

// A deque is filled as a list is; what is appended stays in it.
TEST(Pickle, P32OpaqueClassesTakeWhatIsAppendedToThem) {
  EXPECT_EQ(json(p2("ccollections\ndeque\n)R(K\x01K\x02"
                    "e."sv)),
            R"({"$object": "collections.deque"})");
}

TEST(Pickle, P10NamesBuiltThroughTheMemoAreSeen) {
  const auto graph =
      parse("\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x30\x30h\0h\x01\x93\x8c\x02id\x85R."sv);
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_FALSE(require_known_globals(*graph).has_value());
}

TEST(Pickle, P11NamesWithControlCharactersAreShownEscaped) {
  const auto graph = parse("\x80\x04\x8c\x06torch\n\x8c\x04Size\x93."sv);
  ASSERT_TRUE(graph.has_value());
  const auto known = require_known_globals(*graph);
  ASSERT_FALSE(known.has_value());
  EXPECT_NE(known.error().message.find("\"torch\\n.Size\""), std::string::npos);
}

TEST(Pickle, P12BuildOnlyRemembersTheState) {
  EXPECT_EQ(json(p2("cargparse\nNamespace\n)\x81}X\x0c\0\0\0__setstate__K\x01sb."sv)),
            R"({"$object": {"class": "argparse.Namespace", "state": {"__setstate__": 1}}})");
  EXPECT_EQ(refusal(p2("K\x01}b."sv)), "p:5: BUILD on a int");
}

TEST(Pickle, P13SetitemOnAListIsRefused) {
  EXPECT_EQ(refusal(p2("]K\x01K\x02s."sv)), "p:7: SETITEM on a list, not on a dict");
  EXPECT_EQ(refusal(p2("}K\x01") + "a."), "p:5: APPEND to a dict, not to a list");
}

TEST(Pickle, P14P15RegistryAndInstanceOpcodesAreRefusedByName) {
  EXPECT_EQ(refusal(p2("\x82\x01."sv)), "p:2: opcode 0x82 (EXT1) has no place in a checkpoint");
  EXPECT_EQ(refusal(p2("(icos\nsystem\n.")),
            "p:3: opcode 0x69 (INST) has no place in a checkpoint");
  EXPECT_EQ(refusal(p2("(o.")), "p:3: opcode 0x6f (OBJ) has no place in a checkpoint");
}

TEST(Pickle, P16BytesAfterTheEndAreRefused) {
  EXPECT_EQ(refusal(p2("N.\x80\x02N.")), "p:4: 4 bytes follow the end of the pickle");
}

TEST(Pickle, P17MemoHasNoHoles) {
  EXPECT_EQ(refusal(p2("h\x03."sv)), "p:2: memo entry 3 was never set");
  EXPECT_EQ(refusal(p2("Nr\xff\xff\xff\xff."sv)),
            "p:3: memo index 4294967295 while only 0 are set");
}

TEST(Pickle, P18DepthOfAHundredThousandEndsInALimit) {
  std::string stream(200000, ']');
  std::fill(stream.begin() + 100000, stream.end(), 'a');
  stream.back() = '.';
  EXPECT_EQ(json(p2(stream)), "p: a value nested deeper than 256 levels, or inside itself");
  const auto graph = parse(p2(std::string((1u << 20) + 1, '(')));
  ASSERT_FALSE(graph.has_value());
  EXPECT_EQ(graph.error().code, Code::limit);
}

TEST(Pickle, P19ListInsideItselfIsRefusedAsAValue) {
  EXPECT_EQ(json(p2("]q\0h\0a."sv)), "p: a value nested deeper than 256 levels, or inside itself");
}

TEST(Pickle, P20DoublingThroughTheMemoHitsTheBudget) {
  // Sixty lists, each holding the one before it twice, closed into a tuple.
  std::string stream("(]q");
  stream.push_back('\0');
  for (char i = 1; i < 60; ++i)
    for (const char c : {']', '(', 'h', char(i - 1), 'h', char(i - 1), 'e', 'q', i})
      stream.push_back(c);
  stream.append("t.");
  EXPECT_EQ(json(p2(stream)),
            "p: its values refer to each other until they take more than 67126112 bytes, which is "
            "the limit");
}

TEST(Pickle, P21FrameBeyondTheEndIsRefused) {
  EXPECT_EQ(refusal("\x80\x04\x95\xff\0\0\0\0\0\0\0N."sv),
            "p:2: a frame of 255 bytes, but the pickle ends at byte 13: it was cut off");
}

TEST(Pickle, P22IntegersOfAbsurdLengthAreRefused) {
  EXPECT_EQ(refusal(p2("\x8b\xff\xff\xff\xff."sv)), "p:2: an integer of negative length");
  EXPECT_EQ(refusal(p2("\x8b\xff\xff\xff\x7f."sv)),
            "p:2: an integer of 2147483647 bytes; the limit is 1024");
}

TEST(Pickle, P23DuplicateKeysAreRefused) {
  EXPECT_EQ(json(p2("}(X\x01\0\0\0aK\x01X\x01\0\0\0aK\x02u."sv)),
            "p: a dict holds the key 'a' twice");
}

TEST(Pickle, P24IntegerKeysAreLegal) {
  EXPECT_EQ(json(p2("}K\x07Ns."sv)), R"({"$dict": [[7, null]]})");
}

TEST(Pickle, P25InvalidUtf8IsRefused) {
  EXPECT_EQ(refusal(p2("X\x02\0\0\0\xc3\x28."sv)), "p:2: a string is not valid UTF-8");
  EXPECT_EQ(refusal(p2("X\x03\0\0\0\xed\xa0\x80."sv)), "p:2: a string is not valid UTF-8");
}

TEST(Pickle, P32UsualForeignObjectsAreShownInert) {
  EXPECT_EQ(json(p2("cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\0\0\0f8\x85R"
                    "X\x01\0\0\0a\x86R."sv)),
            R"({"$object": "numpy.core.multiarray.scalar"})");
  EXPECT_EQ(json(p2("ccollections\nOrderedDict\n)RX\x01\0\0\0aK\x01s."sv)), R"({"a": 1})");
}

TEST(Pickle, ReadsIntegersOfEveryWidth) {
  EXPECT_EQ(json(p2("(K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x01\xff\x8a\x02\xff\0\x8a\x00t."sv)),
            R"({"$tuple": [255, 65535, -1, -1, 255, 0]})");
}

TEST(Pickle, NeverCrashesOnAFlippedByte) {
  formats::PickleWriter writer;
  writer.dict([&] {
    for (int i = 0; i < 12; ++i)
      writer.entry("key" + std::to_string(i), [&] { writer.torch_size({3, 4, 5}); });
  });
  const ByteVector good = writer.finish();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      ByteVector bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      const auto graph = PickleGraph::parse(std::move(bytes), "p");
      if (graph) (void)value_of(*graph, graph->root(), nullptr);
    }
  }
}

TEST(Pickle, EveryPrefixIsRefused) {
  formats::PickleWriter writer;
  writer.torch_size({1, 70000, 1ull << 40});
  const ByteVector good = writer.finish();
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(
        PickleGraph::parse({good.begin(), good.begin() + std::ptrdiff_t(size)}, "p").has_value())
        << size;
}

TEST(PickleWriter, WritesNumbersThatReadBackTheSame) {
  for (const std::string_view decimal :
       {"9223372036854775819", "-9223372036854775819", "340282366920938463463374607431768211456"}) {
    formats::PickleWriter writer;
    writer.big_integer(decimal);
    const auto graph = PickleGraph::parse(writer.finish(), "p");
    ASSERT_TRUE(graph.has_value());
    const auto value = value_of(*graph, graph->root(), nullptr);
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(value->text, decimal);
  }
  for (const std::int64_t number : {0l, 255l, 256l, 65536l, -1l, 1l << 31, -(1l << 40)}) {
    formats::PickleWriter writer;
    writer.integer(number);
    const auto graph = PickleGraph::parse(writer.finish(), "p");
    ASSERT_TRUE(graph.has_value());
    EXPECT_EQ(graph->integer(graph->root()), number);
  }
}

}  // namespace

}  // namespace ebb
