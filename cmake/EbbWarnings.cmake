# ebb_options: what every target of ours is compiled with, and no target of a consumer.
# -ffp-contract=off because the bits of a step must not depend on whether a compiler found a fused
# multiply-add (docs/adr).
add_library(ebb_options INTERFACE)
target_compile_features(ebb_options INTERFACE cxx_std_20)
target_compile_options(ebb_options INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow -Wconversion
  -Wold-style-cast -ffp-contract=off)
target_include_directories(ebb_options INTERFACE
  ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
# GCC 12 sees an overlapping, endless or outlying copy in `"text" + std::to_string(n)` (its bug
# 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(ebb_options INTERFACE -Wno-restrict -Wno-stringop-overflow
    -Wno-stringop-overread -Wno-array-bounds)
endif()
if(EBB_WERROR)
  target_compile_options(ebb_options INTERFACE -Werror)
endif()
if(EBB_SANITIZE)
  target_compile_options(ebb_options INTERFACE -fsanitize=${EBB_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # gcc 12 takes std::regex's own moves for uses before initialisation when instrumented.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(ebb_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  # A fifth of the time to compile, and the address sanitizer stops at what these look for, too:
  # memory at a null pointer, or outside of an object. ./dev fuzz has them.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND EBB_SANITIZE MATCHES "address,undefined")
    target_compile_options(ebb_options INTERFACE -fno-sanitize=null,vptr,object-size)
  endif()
  target_link_options(ebb_options INTERFACE -fsanitize=${EBB_SANITIZE})
endif()
if(EBB_FUZZ)
  target_compile_options(ebb_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(EBB_STATIC_PROGRAMS)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Boost_USE_STATIC_LIBS ON)
  target_link_options(ebb_options INTERFACE -static-libgcc -static-libstdc++)
endif()
