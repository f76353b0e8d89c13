# ebb_find_dependencies(LIBRARY...): what formats, swap and muon are linked with. Installed beside
# the libraries, because a program that links a static one is linked with the same. Everything is in
# the distribution's packages; ./dev setup installs them.
macro(ebb_find_dependencies)
  set(ebb_libraries ${ARGN})
  find_package(PkgConfig REQUIRED)
  if("formats" IN_LIST ebb_libraries)
    find_package(OpenSSL REQUIRED COMPONENTS Crypto)
    pkg_check_modules(EBB_ZSTD REQUIRED IMPORTED_TARGET GLOBAL libzstd)
    pkg_check_modules(EBB_ISAL REQUIRED IMPORTED_TARGET GLOBAL libisal)
    pkg_check_modules(EBB_SIMDJSON REQUIRED IMPORTED_TARGET GLOBAL simdjson)
    pkg_check_modules(EBB_ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
  endif()
  if("swap" IN_LIST ebb_libraries)
    find_package(Threads REQUIRED)
    pkg_check_modules(EBB_URING REQUIRED IMPORTED_TARGET GLOBAL liburing)
  endif()
endmacro()
