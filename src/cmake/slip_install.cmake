# `cmake --install DIR --prefix P`: P/bin has the programs, P/share/slipstream what the source tree has beside them, with
# the same names, so that what the pages say works there too. Nothing knows P: the tree may be moved. `cpack` in the build
# folder makes a Debian package of it.
include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/slipstream)
install(TARGETS slipstream RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(PROGRAMS launch/run DESTINATION ${share}/launch)
install(PROGRAMS data/prepare DESTINATION ${share}/data)
install(DIRECTORY configs slurm DESTINATION ${share})
install(DIRECTORY data/tiny DESTINATION ${share}/data PATTERN "__pycache__" EXCLUDE)
install(FILES README.md LICENSE DESTINATION ${share})
install(FILES launch/HOW_IT_WORKS.md launch/TROUBLESHOOTING.md DESTINATION ${share}/launch)
install(FILES data/FORMAT.md data/README.md DESTINATION ${share}/data)
install(FILES launch/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME slipstream)
install(CODE "
  set(bin \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR})
  file(CREATE_LINK ../${share}/launch/run \${bin}/slipstream-run SYMBOLIC)
  file(CREATE_LINK ../${share}/data/prepare \${bin}/slipstream-prepare SYMBOLIC)
  file(CREATE_LINK slipstream \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/bash-completion/completions/slipstream-run SYMBOLIC)
")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME slipstream)
set(CPACK_PACKAGE_CONTACT "slipstream developers <slipstream@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains DFlash drafters of speculative decoding for frozen target models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "openmpi-bin, python3, python3-h5py")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# CUDA's libraries come from no Debian package: they are looked for where the build found them.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CUDAToolkit_LIBRARY_DIR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
include(CPack)
