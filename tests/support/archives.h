// torch.save archives made of parts a test chooses.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/bytes.h"

namespace ebb::test_support {

// The archive torch.save would write around `pickle`, its checksums right, with one storage of each
// given size: "0", "1", ... filled with zeros.
ByteVector archive_around(ByteView pickle,
                          const std::vector<std::size_t>& storages = {64, 64, 64, 64});

// A zip of these records as other tools write it: nothing aligned, CRC32s in the headers.
struct ArchiveRecord {
  enum class Method : std::uint16_t { stored = 0, deflated = 8, bzip2 = 12 };  // bzip2 in name only
  std::string name;
  std::string text;
  Method method = Method::stored;
};
ByteVector archive_of(const std::vector<ArchiveRecord>& records);

// The archive that torch.save wrote to `path`, with a pickle that calls posix.system("touch PWNED")
// first and drops what it returns: no object holds a trace of it.
ByteVector with_hidden_call(const std::filesystem::path& path);

// Writes pickles by hand: what a well-behaved writer would never put together. Texts and names are
// not memoised by themselves.
class PickleText {
 public:
  PickleText() : out_("\x80\x04") {}

  PickleText& raw(std::string_view opcodes);
  PickleText& text(std::string_view text);
  PickleText& number(std::int32_t value);
  PickleText& global(std::string_view module, std::string_view name);
  PickleText& put(std::uint32_t memo);  // the top of the stack
  PickleText& get(std::uint32_t memo);
  // An object of class memo `type` whose attributes are what `fields` adds: key, value, ...
  PickleText& object(std::uint32_t type, const auto& fields) {
    get(type).raw(")\x81}(");
    fields();
    return raw("ub");
  }
  std::string done() const { return out_ + "."; }
  std::size_t size() const { return out_.size(); }

 private:
  std::string out_;
};

}  // namespace ebb::test_support
