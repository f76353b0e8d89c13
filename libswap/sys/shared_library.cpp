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

}  // namespace ebb::libswap
