# Compiler flags of everything built here. None of them is exported to a user of the library, and none relaxes
# floating-point results: -fno-math-errno only lets sqrt and friends skip errno, -fno-trapping-math only lets loops with a
# selection vectorise, computing both sides (tests/test_floating_point.cpp).
include(CheckCXXCompilerFlag)

set(HT_NATIVE_FLAGS "")
if(HALFTONE_NATIVE)
  check_cxx_compiler_flag(-march=native HT_HAS_MARCH_NATIVE)
  if(HT_HAS_MARCH_NATIVE)
    set(HT_NATIVE_FLAGS -march=native)
    # GCC's own tuning for Zen 3 slows Eigen's matrix product by a quarter; Haswell's suits Intel and AMD alike.
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
      list(APPEND HT_NATIVE_FLAGS -mtune=haswell)
    endif()
  endif()
endif()

if(HALFTONE_SANITIZE)
  if("thread" IN_LIST HALFTONE_SANITIZE AND "address" IN_LIST HALFTONE_SANITIZE)
    message(FATAL_ERROR "HALFTONE_SANITIZE: address and thread do not work together; make two builds.")
  endif()
  foreach(sanitizer IN LISTS HALFTONE_SANITIZE)
    if(NOT sanitizer MATCHES "^(address|undefined|thread)$")
      message(FATAL_ERROR "HALFTONE_SANITIZE: '${sanitizer}' is unknown; use address, undefined or thread.")
    endif()
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${sanitizer}>")
    add_link_options("$<$<LINK_LANGUAGE:CXX>:-fsanitize=${sanitizer}>")
  endforeach()
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  # Checks of every pointer make Eigen's files take minutes to compile; address sees null and what lies outside an object,
  # and x86 does not mind alignment.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,alignment,object-size,pointer-overflow>")
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()

function(ht_target_defaults target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-fno-math-errno;-fno-trapping-math;${HT_NATIVE_FLAGS}>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # It finds uninitialised values in its own header of AVX-512 intrinsics, which Eigen uses (GCC's bug 105593).
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>")
  endif()
  if(HT_USE_CUDA)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;--extended-lambda;-lineinfo>")
  endif()
  if(HALFTONE_WERROR)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
  endif()
  target_compile_definitions(${target} PRIVATE HALFTONE_VERSION="${PROJECT_VERSION}")
endfunction()
