# Debian packages of the three parts of cmake --install; packaging/make runs cpack.
set(CPACK_PACKAGE_NAME ebb)
set(CPACK_PACKAGE_VENDOR "The Ebb developers")
set(CPACK_PACKAGE_CONTACT "The Ebb developers <ebb@localhost>")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_COMPONENTS_ALL library dev tools)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/formats
  ${PROJECT_BINARY_DIR}/libswap ${PROJECT_BINARY_DIR}/libmuon)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libebb${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "Optimizer state of large-model training: shared libraries\n Paging, checkpoints, the Muon step.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libebb-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
string(JOIN ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
  "${CPACK_DEBIAN_LIBRARY_PACKAGE_NAME} (= ${PROJECT_VERSION})" libisal-dev
  libsimdjson-dev libssl-dev liburing-dev libzstd-dev zlib1g-dev)
set(CPACK_COMPONENT_DEV_DESCRIPTION
  "Optimizer state of large-model training: for developers\n Headers and static libraries of Ebb.")
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ebb-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
  "Reads and converts checkpoints of large models\n ckpt-inspect, ckpt-convert, swap-bench.")
include(CPack)
