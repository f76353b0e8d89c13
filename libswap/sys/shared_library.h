// SharedLibrary: a library that is loaded while the program runs, its symbols for nobody else.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

class SharedLibrary {
 public:
  // A path, or a name that the system's loader looks for. Code::io says in the loader's
  // words what is missing: it, or a library that it needs.
  static Result<SharedLibrary> open(const std::string& name);
  // Null where there is none. It dies with the last copy of this.
  void* symbol(const char* name) const;

  // The file that code or data of this process is from: a library, or the program; "" if it is not
  // known. As the loader found it: it may be relative to where the process began.
  static std::string file_of(const void* address);

 private:
  std::shared_ptr<void> handle_;
};

}  // namespace ebb::libswap
