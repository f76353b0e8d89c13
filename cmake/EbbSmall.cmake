# Our programs are mostly code that runs once for a file or a tensor: for size it is half as large.
# ebb_vectorized(TARGET SOURCE...): at -O3, as gcc vectorises at -O2 only what costs it nothing.
# Without the precompiled header: it has the build's level, and gcc 12 crashes over one of another.
# ebb_fast(TARGET SOURCE...): the same of loops over elements where the rest is for size.
if(EBB_SMALL)
  add_compile_options(-Os -ffunction-sections -fdata-sections)
  add_link_options(-Wl,--gc-sections)
endif()
function(ebb_vectorized target)
  set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY
    COMPILE_OPTIONS "$<$<NOT:$<CONFIG:Debug>>:-O3>")
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
    SKIP_PRECOMPILE_HEADERS ON)
endfunction()
function(ebb_fast target)
  if(EBB_SMALL)
    ebb_vectorized(${target} ${ARGN})
  endif()
endfunction()
