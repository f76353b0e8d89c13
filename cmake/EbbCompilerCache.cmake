# ccache, where it is installed and nobody named another launcher: a build folder that was removed,
# or a branch that was left and taken up again, costs seconds. Only where Ebb is the project that is
# built. Its manual asks for these liberties, and for -fpch-preprocess, beside precompiled headers.
if(NOT PROJECT_IS_TOP_LEVEL OR DEFINED CMAKE_CXX_COMPILER_LAUNCHER OR
   NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  return()
endif()
find_program(EBB_CCACHE ccache)
mark_as_advanced(EBB_CCACHE)
if(EBB_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${EBB_CCACHE})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
