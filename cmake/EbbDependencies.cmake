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
  if("muon" IN_LIST ebb_libraries)
    find_package(OpenMP REQUIRED COMPONENTS CXX)  # the runtime that oneDNN uses
    # Debian's dnnl-config.cmake asks for OpenCL's development files, which nothing here uses.
    find_path(EBB_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
    find_library(EBB_DNNL_LIBRARY dnnl REQUIRED)
    mark_as_advanced(EBB_DNNL_INCLUDE_DIR EBB_DNNL_LIBRARY)
    if(NOT TARGET ebb::dnnl)
      add_library(ebb::dnnl UNKNOWN IMPORTED GLOBAL)
      set_target_properties(ebb::dnnl PROPERTIES IMPORTED_LOCATION ${EBB_DNNL_LIBRARY}
        INTERFACE_INCLUDE_DIRECTORIES ${EBB_DNNL_INCLUDE_DIR})
    endif()
  endif()
endmacro()
