# cmake -DBUILD=<Halftone's build> -DWORK=<scratch> -DCUDA=<ON|OFF> -P run.cmake
# Installs Halftone to a scratch prefix, then configures, builds and runs the project in this folder against it.
function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "consumer: ${what} failed (${status}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(prefix "${WORK}/prefix")
file(REMOVE_RECURSE "${WORK}")
step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}" --component devel)

file(GLOB_RECURSE configs "${prefix}/*.cmake")
if(NOT configs)
  message(FATAL_ERROR "consumer: no CMake package was installed")
endif()
foreach(config IN LISTS configs)
  file(READ "${config}" text)
  if(NOT CUDA AND text MATCHES "CUDAToolkit|CUDNN|HT_CUDA|cudart")
    message(FATAL_ERROR "consumer: ${config} of a CPU-only build asks for CUDA (${CMAKE_MATCH_0})")
  endif()
  if(text MATCHES "Eigen|nlohmann|CLI11|march=|Werror")
    message(FATAL_ERROR "consumer: ${config} passes an inner matter on to users (${CMAKE_MATCH_0})")
  endif()
endforeach()

step("configure" "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" "-DCMAKE_PREFIX_PATH=${prefix}"
     -DCMAKE_BUILD_TYPE=Release)
step("build" "${CMAKE_COMMAND}" --build "${WORK}/build")
step("run" "${WORK}/build/consumer")
message(STATUS "${output}")
