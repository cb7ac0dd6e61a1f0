# cmake --install: library and headers (component devel), programs (component programs).
# A consumer says find_package(Halftone) and links Halftone::halftone.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Halftone")

install(TARGETS halftone EXPORT HalftoneTargets COMPONENT devel)
foreach(room IN LISTS HT_ROOMS)
  # cuda_*.h, cudnn_*.h and the like name vendor types: they stay inside.
  file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${room}/*.h")
  list(FILTER headers EXCLUDE REGEX "/(cuda|cudnn|cublas|cublaslt|nccl)_[^/]*\\.h$")
  install(FILES ${headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/halftone/${room}" COMPONENT devel)
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/halftone.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/halftone" COMPONENT devel)
install(EXPORT HalftoneTargets NAMESPACE Halftone:: DESTINATION "${config_dir}" COMPONENT devel)

# A CPU-only package does not mention CUDA at all.
set(HT_CONFIG_CUDA "")
if(HT_USE_CUDA)
  string(CONCAT HT_CONFIG_CUDA "list(PREPEND CMAKE_MODULE_PATH \"\${CMAKE_CURRENT_LIST_DIR}\")\n"
                "find_dependency(CUDAToolkit ${CUDAToolkit_VERSION_MAJOR})\nfind_dependency(CUDNN 9.0)\n")
  if(HT_USE_NCCL)
    string(APPEND HT_CONFIG_CUDA "find_dependency(NCCL)\n")
  endif()
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/HalftoneConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/HalftoneConfig.cmake" INSTALL_DESTINATION "${config_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/HalftoneConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/HalftoneConfig.cmake" "${PROJECT_BINARY_DIR}/HalftoneConfigVersion.cmake"
        DESTINATION "${config_dir}" COMPONENT devel)
if(HT_USE_CUDA)
  install(FILES cmake/FindCUDNN.cmake cmake/FindNCCL.cmake DESTINATION "${config_dir}" COMPONENT devel)
endif()
foreach(program train_vgg16 predict halftone_tool)
  if(TARGET ${program})
    install(TARGETS ${program} COMPONENT programs)
  endif()
endforeach()
