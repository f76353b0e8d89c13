# cmake -DOUT=FILE "-DFILES=A;B" -P embed.cmake: a source file with the text of each of FILES as a
# constant called like it: web::map_js.
set(out "#include \"tools/pictures/web.h\"\n\nnamespace ebb::tools::pictures::web {\n\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REPLACE "." "_" name ${name})
  file(READ ${file} text)
  string(APPEND out "const std::string_view ${name} = R\"ebb(${text})ebb\";\n")
endforeach()
file(WRITE ${OUT} "${out}\n}  // namespace ebb::tools::pictures::web\n")
