# EBB_CUDA: whether ebb-cuda.so is built. It wants nvcc 13, and cuBLASLt and NCCL: of a whole
# toolkit, or of the pip packages nvidia-cublas==13.1.1.3 and nvidia-nccl-cu13==2.30.7 in the
# folder EBB_CUDA_PACKAGES, where `./dev build cuda` puts them. Nothing else here needs CUDA, and
# without it everything else is built.
set(EBB_CUDA_PACKAGES "" CACHE PATH "Folder of pip's packages nvidia-cublas and nvidia-nccl-cu13")

function(ebb_no_cuda why)
  message(STATUS "ebb-cuda.so is left out: ${why}")
endfunction()

macro(ebb_find_cuda)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    ebb_no_cuda("no nvcc found")
    return()
  endif()
  get_filename_component(toolkit ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
  set(hints ${toolkit} /usr/local/cuda ${EBB_CUDA_PACKAGES}/nvidia/cu13
    ${EBB_CUDA_PACKAGES}/nvidia/nccl)
  find_path(EBB_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${hints} PATH_SUFFIXES include)
  find_library(EBB_CUBLASLT_LIBRARY NAMES libcublasLt.so.13 HINTS ${hints} PATH_SUFFIXES lib lib64)
  find_path(EBB_NCCL_INCLUDE_DIR nccl.h HINTS ${hints} PATH_SUFFIXES include)
  find_library(EBB_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${hints} PATH_SUFFIXES lib lib64)
  mark_as_advanced(EBB_CUBLASLT_INCLUDE_DIR EBB_CUBLASLT_LIBRARY EBB_NCCL_INCLUDE_DIR
    EBB_NCCL_LIBRARY)
  foreach(part CUBLASLT_INCLUDE_DIR CUBLASLT_LIBRARY NCCL_INCLUDE_DIR NCCL_LIBRARY)
    if(NOT EBB_${part})
      ebb_no_cuda("no EBB_${part}: ./dev build cuda fetches cuBLAS and NCCL")
      return()
    endif()
  endforeach()
  # CMake 3.25 knows no flags for C++20 in CUDA.
  set(CMAKE_CUDA_ARCHITECTURES "80;90a-real")  # 80 with PTX, for what is newer than both
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13 OR CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER 14)
    ebb_no_cuda("nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, not 13")
    return()
  endif()
  foreach(kind STANDARD EXTENSION)
    if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
    endif()
  endforeach()
  set(EBB_CUDA ON)
endmacro()
