# Headers of the libraries are included as "ebb/LIBRARY/FOLDER/NAME.h", here as after installation.
foreach(library formats libswap libmuon)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include/ebb)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${library} ${PROJECT_BINARY_DIR}/include/ebb/${library}
    SYMBOLIC)
endforeach()

# The precompiled header holds only headers of the standard
# library: most of what a source file of ours takes to compile.
function(ebb_precompile name)
  target_precompile_headers(${name} PRIVATE <algorithm> <functional> <map> <memory> <optional>
    <set> <string> <string_view> <unordered_map> <utility> <variant> <vector>)
endfunction()
