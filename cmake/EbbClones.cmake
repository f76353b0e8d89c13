# ebb_clones(TARGET SET...): sources of TARGET may write EBB_CLONES before a function: its loops are
# compiled for these instruction sets, too, and one version is chosen when the program starts. Sets
# EBB_HAS_CLONES. The sanitizers' runtimes are not up yet when that choice is made.
include(CheckCXXSourceCompiles)
check_cxx_source_compiles("
  __attribute__((target_clones(\"avx512f\", \"avx2\", \"default\"))) int f(int x) { return x; }
  int main() { return f(0); }" EBB_HAS_TARGET_CLONES)
if(EBB_HAS_TARGET_CLONES AND NOT EBB_SANITIZE)
  set(EBB_HAS_CLONES ON)
else()
  set(EBB_HAS_CLONES OFF)
endif()

function(ebb_clones target)
  set(attribute "")
  if(EBB_HAS_CLONES)
    list(TRANSFORM ARGN REPLACE "(.+)" "\"\\1\"")
    list(JOIN ARGN ", " sets)
    set(attribute "__attribute__((target_clones(${sets}, \"default\")))")
  endif()
  target_compile_definitions(${target} PRIVATE "EBB_CLONES=${attribute}")
endfunction()
