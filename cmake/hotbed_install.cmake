# cmake/hotbed_install.cmake - headers, library, CMake package and hotbed.pc.
include(CMakePackageConfigHelpers)

install(TARGETS hotbed EXPORT hotbed-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/hotbed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

set(hotbed_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/hotbed)
install(EXPORT hotbed-targets NAMESPACE hotbed:: DESTINATION ${hotbed_package_dir})
configure_package_config_file(
  cmake/hotbed-config.cmake.in ${PROJECT_BINARY_DIR}/hotbed-config.cmake
  INSTALL_DESTINATION ${hotbed_package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/hotbed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hotbed-config.cmake
              ${PROJECT_BINARY_DIR}/hotbed-config-version.cmake DESTINATION ${hotbed_package_dir})

# The prefix is found from where the file lies, so that the installed tree can be moved.
set(hotbed_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH hotbed_pc_up /prefix/${hotbed_pc_dir} /prefix)
string(REGEX REPLACE "/$" "" hotbed_pc_up "${hotbed_pc_up}")
configure_file(cmake/hotbed.pc.in ${PROJECT_BINARY_DIR}/hotbed.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/hotbed.pc DESTINATION ${hotbed_pc_dir})
