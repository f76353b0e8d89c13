// ebb-hdf5-reader SIZE: describes one HDF5 file for another program, which serves the file's SIZE
// bytes over descriptor 0 and gets the description there (libswap/tree/probe.h). Not for people.
// Everything after the first line of main's work happens confined.
#include <hdf5.h>

#include <cstring>
#include <new>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/libswap/sys/confine.h"
#include "tools/hdf5_reader/driver.h"
#include "tools/hdf5_reader/walk.h"

namespace ebb {

namespace {

using hdf5_reader::Handle;

constexpr int kSocket = 0;
constexpr std::size_t kPart = std::size_t{1} << 20;
constexpr std::size_t kMostExcuse = 4000;

[[noreturn]] void leave_with(Code code, std::string_view why) {
  why = why.substr(0, kMostExcuse);
  std::byte frame[6] = {std::byte{'E'}, static_cast<std::byte>(code)};
  const auto count = static_cast<std::uint32_t>(why.size());
  std::memcpy(frame + 2, &count, sizeof(count));
  libswap::write_exactly(kSocket, frame, sizeof(frame));
  libswap::write_exactly(kSocket, reinterpret_cast<const std::byte*>(why.data()), why.size());
  libswap::leave_at_once(0);
}

Result<ByteVector> report(std::uint64_t size) {
  // Before any byte of the file: the library's own start, which may still ask the system things.
  if (H5open() < 0 || H5PLset_loading_state(0) < 0)
    return Error{Code::io, "libhdf5 does not start"};
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  hdf5_reader::Bytes bytes(kSocket, size);
  EBB_TRY_ASSIGN(const Handle access, hdf5_reader::access_through(bytes));
  EBB_TRY_ASSIGN(std::vector<std::string> missing,
                 libswap::confine_this_process({.descriptor = kSocket}));
  const Handle file(H5Fopen(hdf5_reader::kFileName, H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file) return hdf5_reader::library_error("not readable as HDF5");
  EBB_TRY_ASSIGN(formats::hdf5::Description description, describe_file(file.get(), bytes));
  unsigned version[3] = {};
  H5get_libversion(&version[0], &version[1], &version[2]);
  for (const unsigned part : version)
    description.library += (description.library.empty() ? "" : ".") + std::to_string(part);
  for (const std::string& what : missing)
    description.notes.push_back("HDF5 was parsed in a process less confined than usual: " + what);
  return encode(description);
}

void send(const ByteVector& bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPart) {
    const std::size_t count = std::min(kPart, bytes.size() - at);
    ByteVector frame;
    formats::append_text(frame, "D");
    formats::append_le(frame, static_cast<std::uint32_t>(count));
    formats::append_bytes(frame, ByteView(bytes).subspan(at, count));
    if (!libswap::write_exactly(kSocket, frame.data(), frame.size())) return;
  }
}

}  // namespace

int program_main(int argc, char** argv) {
  std::set_new_handler(
      [] { leave_with(Code::limit, "describing this file needs more memory than the limit"); });
  const auto size = formats::parse_number<std::uint64_t>(argc == 2 ? argv[1] : "");
  if (!size) {
    leave_with(Code::usage, "ebb-hdf5-reader is started by ckpt-inspect and ckpt-convert");
  }
  const Result<ByteVector> bytes = report(*size);
  if (!bytes) leave_with(bytes.error().code, bytes.error().message);
  send(*bytes);
  // What libhdf5 would do at exit is of no use, and not allowed any more.
  libswap::leave_at_once(0);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
