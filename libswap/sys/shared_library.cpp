#include "ebb/libswap/sys/shared_library.h"

#include <dlfcn.h>

namespace ebb::libswap {

Result<SharedLibrary> SharedLibrary::open(const std::string& name) {
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Error{Code::io, why != nullptr ? why : name + ": cannot be loaded"};
  }
  SharedLibrary library;
  library.handle_ = {handle, [](void* loaded) { ::dlclose(loaded); }};
  return library;
}

void* SharedLibrary::symbol(const char* name) const { return ::dlsym(handle_.get(), name); }

std::string SharedLibrary::file_of(const void* address) {
  ::Dl_info found{};
  if (::dladdr(address, &found) == 0 || found.dli_fname == nullptr) return "";
  return found.dli_fname;
}

}  // namespace ebb::libswap
