# ebb_library(NAME): a static library ebb_NAME and, with EBB_SHARED, ebb_NAME_shared of the same
# objects; ebb::NAME is the shared one where BUILD_SHARED_LIBS asks for it. Folders add their
# sources to ebb_NAME.
#   NEEDS   libraries of ours that its headers include
#   PUBLIC  other libraries that its headers include
#   USES    other libraries; STATIC_USES and SHARED_USES for one of the two

# Headers of the libraries are included as "ebb/LIBRARY/FOLDER/NAME.h", here as after installation.
foreach(library formats libswap libmuon)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/ebb)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${library} ${PROJECT_BINARY_DIR}/include/ebb/${library}
    SYMBOLIC)
endforeach()

function(ebb_library name)
  cmake_parse_arguments(arg "" "" "NEEDS;PUBLIC;USES;STATIC_USES;SHARED_USES" ${ARGN})
  add_library(ebb_${name} STATIC)
  # Nothing of ours may interpose a function of ours: calls inside a file can be inlined as usual.
  target_compile_options(ebb_${name} PRIVATE -fno-semantic-interposition)
  target_link_libraries(ebb_${name}
    PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:ebb_options> ${arg_USES} ${arg_STATIC_USES})
  set(targets ebb_${name})
  if(EBB_SHARED)
    add_library(ebb_${name}_shared SHARED $<TARGET_OBJECTS:ebb_${name}>)
    set(script ${PROJECT_SOURCE_DIR}/cmake/exported.map)
    target_link_options(ebb_${name}_shared PRIVATE -Wl,-z,defs -Wl,--version-script=${script})
    target_link_libraries(ebb_${name}_shared
      PUBLIC ${arg_PUBLIC} PRIVATE ${arg_USES} ${arg_SHARED_USES})
    set_target_properties(ebb_${name}_shared PROPERTIES LINK_DEPENDS ${script} INSTALL_RPATH $ORIGIN
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    list(APPEND targets ebb_${name}_shared)
  endif()
  foreach(target ${targets})
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ebb_${name} EXPORT_NAME ${name}
      LINKER_LANGUAGE CXX POSITION_INDEPENDENT_CODE ON)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  foreach(need ${arg_NEEDS})
    target_link_libraries(ebb_${name} PUBLIC ebb_${need})
    if(EBB_SHARED)
      target_link_libraries(ebb_${name}_shared PUBLIC ebb_${need}_shared)
    endif()
  endforeach()
  if(EBB_SHARED AND BUILD_SHARED_LIBS)
    add_library(ebb::${name} ALIAS ebb_${name}_shared)
  else()
    add_library(ebb::${name} ALIAS ebb_${name})
  endif()
  ebb_precompile(ebb_${name})
endfunction()

# The precompiled header holds only headers of the standard
# library: most of what a source file of ours takes to compile.
function(ebb_precompile name)
  target_precompile_headers(${name} PRIVATE <algorithm> <functional> <map> <memory> <optional>
    <set> <string> <string_view> <unordered_map> <utility> <variant> <vector>)
endfunction()

# ebb_unity(TARGET), behind its last source: with EBB_UNITY=ON those of one folder are compiled
# together, at most eight at a time. So a name that is a file's own is there once in its folder.
# Files with flags of their own stay alone.
function(ebb_unity target)
  if(NOT EBB_UNITY OR EBB_UNITY STREQUAL TESTS)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # gcc takes what is included for a header, and warns of its classes with members of a file's own.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  get_target_property(sources ${target} SOURCES)
  get_target_property(directory ${target} SOURCE_DIR)
  set(last "")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${directory})
    cmake_path(GET source PARENT_PATH folder)
    if(NOT folder STREQUAL last)
      set(last ${folder})
      set(place 0)
    endif()
    math(EXPR number "${place} / 8")
    math(EXPR place "${place} + 1")
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER ${name}_${number} name)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${name})
  endforeach()
endfunction()
