# Third-party libraries, all from the distribution's packages; ./dev setup installs them.
find_package(Threads REQUIRED)
if(NOT EBB_FUZZ)  # clang brings no OpenMP, and what is fuzzed needs none
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # the runtime that oneDNN uses
endif()
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Boost REQUIRED COMPONENTS program_options)
# Debian's dnnl-config.cmake asks for OpenCL's development files, which nothing here uses.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(SIMDJSON REQUIRED IMPORTED_TARGET simdjson)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
# HDF5 is optional: without it everything else builds, and no .h5 file is read (writing needs no
# library). The serial flavour: Debian and Ubuntu call it so, others just hdf5.
pkg_search_module(HDF5 IMPORTED_TARGET hdf5-serial hdf5)
