# Our programs are mostly code that runs once for a file or a tensor: for size it is half as large.
# ebb_fast(TARGET SOURCE...): loops over elements, which are not.
if(EBB_SMALL)
  add_compile_options(-Os -ffunction-sections -fdata-sections)
  add_link_options(-Wl,--gc-sections)
endif()
function(ebb_fast target)
  if(EBB_SMALL)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY COMPILE_OPTIONS -O3)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES
      SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
