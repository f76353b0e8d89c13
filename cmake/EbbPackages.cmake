# Third-party libraries, all from the distribution's packages; ./dev setup installs them.
find_package(Threads REQUIRED)
if(NOT EBB_FUZZ)  # clang brings no OpenMP, and what is fuzzed needs none
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # the runtime that oneDNN uses
endif()
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
# What is used of it is SHA-256: linked in where the static library is installed, because loading
# all the other algorithms would be a quarter of the time in which a tool starts.
find_library(EBB_CRYPTO_ARCHIVE libcrypto.a)
add_library(ebb_sha256 INTERFACE)
target_include_directories(ebb_sha256 INTERFACE ${OPENSSL_INCLUDE_DIR})
target_compile_definitions(ebb_sha256 INTERFACE OPENSSL_API_COMPAT=10100)  # SHA256_Init and others
if(EBB_CRYPTO_ARCHIVE)
  target_link_libraries(ebb_sha256 INTERFACE ${EBB_CRYPTO_ARCHIVE})
else()
  target_link_libraries(ebb_sha256 INTERFACE OpenSSL::Crypto)
endif()
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
if(EBB_HDF5)
  pkg_search_module(HDF5 QUIET IMPORTED_TARGET hdf5-serial hdf5)
else()
  set(HDF5_FOUND FALSE)
endif()
if(NOT HDF5_FOUND)
  message(STATUS "HDF5 files will be written but not read: ebb-hdf5-reader and its tests are left "
    "out (libhdf5-dev is not installed, or EBB_HDF5 is OFF)")
endif()
