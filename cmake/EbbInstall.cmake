# cmake --install in three parts: `library` (shared libraries), `dev` (headers, static libraries,
# files for CMake and pkg-config) and `tools` (programs). Nothing installed names the folder it lies
# in: the whole may be moved.
include(CMakePackageConfigHelpers)
set(EBB_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ebb)

file(RELATIVE_PATH EBB_PC_INCLUDE /${CMAKE_INSTALL_LIBDIR}/pkgconfig /${CMAKE_INSTALL_INCLUDEDIR})

set(EBB_INSTALLED formats swap)
if(EBB_MUON)
  list(APPEND EBB_INSTALLED muon)
endif()
foreach(name ${EBB_INSTALLED})
  install(TARGETS ebb_${name} EXPORT ebb-${name}-static
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT ebb-${name}-static NAMESPACE ebb:: DESTINATION ${EBB_CMAKE_DIR} COMPONENT dev)
  if(EBB_SHARED)
    install(TARGETS ebb_${name}_shared EXPORT ebb-${name}-shared
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT dev)
    install(EXPORT ebb-${name}-shared NAMESPACE ebb:: DESTINATION ${EBB_CMAKE_DIR} COMPONENT dev)
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/ebb-${name}.pc.in ebb-${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ebb-${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ebb-config.cmake.in ebb-config.cmake
  INSTALL_DESTINATION ${EBB_CMAKE_DIR} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(ebb-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ebb-config.cmake cmake/EbbDependencies.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/ebb-config-version.cmake
  DESTINATION ${EBB_CMAKE_DIR} COMPONENT dev)

# A header is public when it is in this list or is included by one that is.
set(EBB_PUBLIC_HEADERS
  formats/conversion/convert.h formats/conversion/memory_content.h formats/core/result.h
  formats/core/sha256.h formats/describe.h formats/registry.h
  libswap/pager/stream.h libswap/queue/disk_probe.h libswap/queue/io_queue.h libswap/read/load.h
  libswap/space/state_store.h libswap/space/swap_space.h
  libswap/store/store.h libswap/store/store_set.h libswap/sys/process.h libswap/sys/thread.h
  libswap/trace.h libswap/tree/file_tree.h libswap/write/save.h libswap/write/write_checkpoint.h)
if(EBB_MUON)
  list(APPEND EBB_PUBLIC_HEADERS libmuon/comm/communicator.h libmuon/comm/mpi_ranks.h
    libmuon/comm/socket_ranks.h
    libmuon/spec/spec.h libmuon/step/engine.h libmuon/step/forecast.h)
endif()
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")
  set(headers \"${EBB_PUBLIC_HEADERS}\")
  set(target \"${CMAKE_INSTALL_INCLUDEDIR}/ebb\")" COMPONENT dev)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake COMPONENT dev)

if(EBB_TOOLS)
  set(programs ckpt-inspect ckpt-convert swap-bench)
  if(TARGET ebb-hdf5-reader)
    list(APPEND programs ebb-hdf5-reader)
  endif()
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  # Each program prints its own manual page and completions, from the table of its flags.
  if(NOT CMAKE_CROSSCOMPILING)
    foreach(program ckpt-inspect ckpt-convert swap-bench)
      install(CODE "set(program \"${program}\")
        set(command \"$<TARGET_FILE:${program}>\")
        set(share \"${CMAKE_INSTALL_DATADIR}\")" COMPONENT tools)
      install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallPages.cmake COMPONENT tools)
    endforeach()
  endif()
endif()
include(EbbPackages)
