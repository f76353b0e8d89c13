// What a hostile or broken header may hold, and the exact sentence about it.
#include <gtest/gtest.h>

#include "ebb/formats/safetensors/header.h"
#include "tests/support/safetensors_file.h"

namespace ebb {

namespace {

using formats::MemorySource;
using formats::safetensors::read_header;

MemorySource file_with(std::string_view header, std::size_t data_bytes) {
  return {"m.safetensors", test_support::safetensors_bytes(header, data_bytes)};
}

struct Refusal {
  const char* name;
  std::string header;
  std::size_t data_bytes;
  Code code;
  std::string message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

std::string one(std::string_view shape, std::string_view offsets, std::string_view dtype) {
  return "{\"a\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}}";
}

class HeaderRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(HeaderRefusal, NamesPlaceAndReason) {
  const auto header = read_header(file_with(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, GetParam().code);
  EXPECT_EQ(header.error().message, GetParam().message);
}

const Refusal kRefusals[] = {
    {"NotUtf8", "{\"\xff\":1}", 0, Code::corrupt, "m.safetensors:10: the header is not UTF-8"},
    {"ByteOrderMark", "\xef\xbb\xbf{}", 0, Code::corrupt,
     "m.safetensors:8: the header does not begin with '{'"},
    {"SpaceFirst", " {}", 0, Code::corrupt, "m.safetensors:8: the header does not begin with '{'"},
    {"DeepNesting", one(std::string(10000, '['), "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: tensor 'a': shape holds [ where a whole number is due"},
    {"HugeExponent", one("[1e400]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: tensor 'a': shape holds 1e400 where a whole number is due"},
    {"Fraction", one("[1.5]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: tensor 'a': shape holds 1.5 where a whole number is due"},
    {"Negative", one("[-1]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: tensor 'a': shape holds -1 where a whole number is due"},
    {"LeadingZero", one("[01]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: the header is not valid JSON (01 at byte 29 of the header)"},
    {"TwoToThe64", one("[18446744073709551616]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:37: tensor 'a': shape holds 18446744073709551616, which does not fit 64 bits"},
    {"DuplicateMetadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, Code::corrupt,
     "m.safetensors:42: key '__metadata__' appears twice in the header"},
    {"DuplicateField",
     "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     Code::corrupt, "m.safetensors:36: key 'dtype' appears twice in tensor 'a'"},
    {"ShapeOverflow", one("[8589934592,8589934592]", "[0,4]", "F32"), 4, Code::corrupt,
     "m.safetensors:13: tensor 'a': F32 [8589934592, 8589934592] does not fit 64 bits"},
    {"ReversedOffsets", one("[1]", "[4,0]", "F32"), 4, Code::corrupt,
     "m.safetensors:13: tensor 'a': data_offsets [4,0) run backwards"},
    {"ThreeOffsets", one("[1]", "[0,4,8]", "F32"), 4, Code::corrupt,
     "m.safetensors:55: tensor 'a': data_offsets has 3 numbers instead of 2"},
    {"TrailingBytes", one("[1]", "[0,4]", "F32"), 7, Code::corrupt,
     "m.safetensors:66: bytes [4,7) of the data belong to no tensor"},
    {"FileTooShort", one("[2]", "[0,8]", "F32"), 5, Code::incomplete,
     "m.safetensors:67: the file ends at byte 5 of the data, inside tensor 'a' [0,8)"},
    {"UnknownDtype", one("[1]", "[0,4]", "F31"), 4, Code::unsupported,
     "m.safetensors:22: tensor 'a': dtype 'F31' is not one of safetensors'"},
    {"HalfAByte", one("[3]", "[0,2]", "F4"), 2, Code::corrupt,
     "m.safetensors:13: tensor 'a': F4 [3] is not a whole number of bytes"},
    {"MetadataNumber", "{\"__metadata__\":{\"n\":1}}", 0, Code::corrupt,
     "m.safetensors:29: __metadata__: 'n' holds 1 where a string is due"},
    {"MissingField", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, Code::corrupt,
     "m.safetensors:13: tensor 'a' lacks dtype, shape or data_offsets"},
    {"UnknownField", "{\"a\":{\"x\":1}}", 0, Code::corrupt,
     "m.safetensors:18: tensor 'a': unknown field 'x'"},
    {"NotAnObject", "{\"a\":[]}", 0, Code::corrupt,
     "m.safetensors:13: tensor 'a' holds [ where an object is due"},
    {"Unclosed", "{\"a\":{", 0, Code::corrupt,
     "m.safetensors:8: the header is not valid JSON ({ at byte 0 of the header)"},
    {"SecondDocument", "{} {}", 0, Code::corrupt,
     "m.safetensors:11: the header is not valid JSON ({ at byte 3 of the header)"},
    {"TerminalEscape", "{\"\\u001b[31m\":0}", 0, Code::corrupt,
     "m.safetensors:22: tensor '\\x1b[31m' holds 0 where an object is due"},
};

INSTANTIATE_TEST_SUITE_P(Malformed, HeaderRefusal, testing::ValuesIn(kRefusals),
                         [](const auto& one_case) { return std::string(one_case.param.name); });

TEST(HeaderLength, TooFewBytesForIt) {
  const auto header = read_header(MemorySource("m", ByteVector(7)));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message,
            "m:0: 7 bytes are too few for a safetensors file (8 for the header's length)");
}

TEST(HeaderLength, ZeroAndTheLargestNumberAreRefused) {
  const auto zero = read_header(MemorySource("m", ByteVector(16)));
  ASSERT_FALSE(zero);
  EXPECT_EQ(zero.error().message, "m:0: the header's length is 0");
  const auto largest = read_header(MemorySource("m", ByteVector(16, std::byte{0xff})));
  ASSERT_FALSE(largest);
  EXPECT_EQ(largest.error().code, Code::incomplete);
  EXPECT_EQ(largest.error().message,
            "m:0: the header claims 18446744073709551615 bytes but the file has fewer");
}

TEST(HeaderKeys, AMegabyteOfNameIsOverTheLimit) {
  const auto header = read_header(file_with("{\"" + std::string(1u << 20, 'k') + "\":{}}", 0));
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, Code::limit);
  EXPECT_TRUE(header.error().message.ends_with("its name has 1048576 bytes, the limit is 65536"));
}

TEST(HeaderTensors, ZeroSizedOnesAreLegal) {
  const auto header = read_header(file_with(one("[0,4]", "[0,0]", "F32"), 0));
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->tensors.at(0).shape, (Shape{0, 4}));
}

}  // namespace

}  // namespace ebb
