#include "tools/hdf5_reader/driver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "ebb/formats/core/bytes.h"
#include "ebb/libswap/sys/confine.h"

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace ebb::hdf5_reader {
namespace {

constexpr std::uint64_t kBlock = 64 * 1024;
constexpr std::size_t kMostBlocks = 1024;

struct Context {  // what the property list carries
  Bytes* bytes;
};

struct OpenFile {
  H5FD_t base;  // first: the library knows only this part
  Bytes* bytes;
  haddr_t end_of_allocated;
};

OpenFile* of(H5FD_t* file) { return reinterpret_cast<OpenFile*>(file); }
const OpenFile* of(const H5FD_t* file) { return reinterpret_cast<const OpenFile*>(file); }

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* context = static_cast<const Context*>(H5Pget_driver_info(access));
  // Sources of virtual datasets and targets of links are other files: there are none here.
  if (context == nullptr || std::string_view(name) != kFileName || (flags & H5F_ACC_RDWR) != 0)
    return nullptr;
  auto file = std::make_unique<OpenFile>();
  file->bytes = context->bytes;
  return &file.release()->base;
}

herr_t close_file(H5FD_t* file) {
  delete of(file);
  return 0;
}

int compare_files(const H5FD_t* a, const H5FD_t* b) { return a < b ? -1 : (b < a ? 1 : 0); }

herr_t query_features(const H5FD_t*, unsigned long* flags) {
  *flags = 0;  // no caching of its own: blocks are cached here
  return 0;
}

haddr_t get_end_of_allocated(const H5FD_t* file, H5FD_mem_t) { return of(file)->end_of_allocated; }

herr_t set_end_of_allocated(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  of(file)->end_of_allocated = address;
  return 0;
}

haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) { return of(file)->bytes->size(); }

herr_t read_file(H5FD_t* file, H5FD_mem_t kind, hid_t, haddr_t address, std::size_t count,
                 void* into) {
  Bytes& bytes = *of(file)->bytes;
  if (kind == H5FD_MEM_DRAW && bytes.note_if_tracing(address, count)) return 0;
  return bytes.read(address, static_cast<std::byte*>(into), count) ? 0 : -1;
}

herr_t write_nothing(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, std::size_t, const void*) { return -1; }

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 2)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600);
#endif
  driver.name = "ebb";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(Context);
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare_files;
  driver.query = query_features;
  driver.get_eoa = get_end_of_allocated;
  driver.set_eoa = set_end_of_allocated;
  driver.get_eof = get_end_of_file;
  driver.read = read_file;
  driver.write = write_nothing;
  constexpr std::array<H5FD_mem_t, H5FD_MEM_NTYPES> kOneKindOfMemory = H5FD_FLMAP_SINGLE;
  std::copy(kOneKindOfMemory.begin(), kOneKindOfMemory.end(), driver.fl_map);
  return driver;
}

}  // namespace

const std::vector<std::byte>* Bytes::block(std::uint64_t number) {
  if (const auto found = blocks_.find(number); found != blocks_.end()) return &found->second;
  if (blocks_.size() == kMostBlocks) blocks_.clear();
  const std::uint64_t at = number * kBlock;
  const auto count = static_cast<std::uint32_t>(std::min(kBlock, size_ - at));
  ByteVector request;
  formats::append_text(request, "R");
  formats::append_le(request, at);
  formats::append_le(request, count);
  std::vector<std::byte> bytes(count);
  if (!libswap::write_exactly(socket_, request.data(), request.size()) ||
      !libswap::read_exactly(socket_, bytes.data(), bytes.size()))
    return nullptr;
  return &blocks_.emplace(number, std::move(bytes)).first->second;
}

bool Bytes::read(std::uint64_t at, std::byte* into, std::size_t count) {
  while (count > 0) {
    if (at >= size_) {
      std::fill_n(into, count, std::byte{0});
      return true;
    }
    const std::vector<std::byte>* bytes = block(at / kBlock);
    if (bytes == nullptr) return false;
    const std::uint64_t inside = at % kBlock;
    const std::size_t taken = std::min<std::size_t>(count, bytes->size() - inside);
    std::memcpy(into, bytes->data() + inside, taken);
    at += taken;
    into += taken;
    count -= taken;
  }
  return true;
}

Result<Handle> access_through(Bytes& bytes) {
  const H5FD_class_t driver = driver_class();
  const hid_t id = H5FDregister(&driver);
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const Context context{&bytes};
  if (id < 0 || !access || H5Pset_driver(access.get(), id, &context) < 0)
    return library_error("libhdf5 takes no driver of ours");
  return access;
}

Error library_error(const std::string& where) {
  std::string reason = "libhdf5 gives no reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned number, const H5E_error2_t* error, void* out) -> herr_t {
        // Innermost first; the next one says what was being done.
        std::string& text = *static_cast<std::string*>(out);
        if (number == 0) text = error->desc;
        if (number == 1) text.append(" (").append(error->desc).append(")");
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  return {Code::corrupt, where + ": " + reason};
}

}  // namespace ebb::hdf5_reader
