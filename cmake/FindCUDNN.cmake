# Finds cuDNN. Sets CUDNN_FOUND, CUDNN_VERSION, CUDNN_INCLUDE_DIR, CUDNN_LIBRARY and the target CUDNN::cudnn.
# Looks in CUDNN_ROOT (variable or environment), CUDNN_PATH, the CUDA toolkit, the system, and the folder of the Python
# wheel nvidia-cudnn-cu*, in this order.

set(cudnn_hints "$ENV{CUDNN_PATH}" ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_ROOT} ${CUDAToolkit_TARGET_DIR} /usr/local/cuda)
find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${cudnn_hints} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
if(NOT CUDNN_INCLUDE_DIR)
  find_program(CUDNN_PYTHON NAMES python3)
  mark_as_advanced(CUDNN_PYTHON)
  if(CUDNN_PYTHON)
    execute_process(
      COMMAND "${CUDNN_PYTHON}" -c "import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0])"
      OUTPUT_VARIABLE cudnn_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND cudnn_hints "${cudnn_wheel}")
    find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${cudnn_hints} PATH_SUFFIXES include)
  endif()
endif()
if(CUDNN_INCLUDE_DIR)
  cmake_path(GET CUDNN_INCLUDE_DIR PARENT_PATH cudnn_beside)
  list(APPEND cudnn_hints "${cudnn_beside}")
endif()
# A wheel has no plain libcudnn.so.
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${cudnn_hints} ${CUDAToolkit_LIBRARY_DIR}
             PATH_SUFFIXES lib64 lib lib/x86_64-linux-gnu lib/aarch64-linux-gnu)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)

if(CUDNN_INCLUDE_DIR AND EXISTS "${CUDNN_INCLUDE_DIR}/cudnn_version.h")
  file(STRINGS "${CUDNN_INCLUDE_DIR}/cudnn_version.h" cudnn_lines REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
  foreach(part MAJOR MINOR PATCHLEVEL)
    string(REGEX MATCH "CUDNN_${part} ([0-9]+)" cudnn_match "${cudnn_lines}")
    set(cudnn_${part} "${CMAKE_MATCH_1}")
  endforeach()
  set(CUDNN_VERSION "${cudnn_MAJOR}.${cudnn_MINOR}.${cudnn_PATCHLEVEL}")
else()
  unset(CUDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
if(CUDNN_FOUND AND NOT TARGET CUDNN::cudnn)
  add_library(CUDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(CUDNN::cudnn PROPERTIES IMPORTED_LOCATION "${CUDNN_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                                     "${CUDNN_INCLUDE_DIR}")
endif()
