# Finds what the library, programs and tests are built from; what is missing is named in one error with the command that
# installs it. Header-only libraries may also lie in HALFTONE_EXTRA_INCLUDE or in the compiler's CPATH.

set(HT_MISSING_DEBIAN "")
set(HT_MISSING_TEXT "")

# ht_header_library(<variable> <package> <target> <header> <Debian package> [<version>]): sets <variable> to a target.
function(ht_header_library variable package target header debian)
  find_package(${package} ${ARGN} QUIET CONFIG)
  if(TARGET ${target})
    set(${variable} ${target} PARENT_SCOPE)
    set(${variable}_FROM "${${package}_VERSION} (${${package}_DIR})" PARENT_SCOPE)
    return()
  endif()
  string(REPLACE ":" ";" cpath "$ENV{CPATH}")
  find_path(${variable}_INCLUDE "${header}" HINTS ${HALFTONE_EXTRA_INCLUDE} ${cpath} PATH_SUFFIXES eigen3)
  mark_as_advanced(${variable}_INCLUDE)
  if(${variable}_INCLUDE)
    add_library(ht_headers_${package} INTERFACE IMPORTED)
    target_include_directories(ht_headers_${package} INTERFACE "${${variable}_INCLUDE}")
    set(${variable} ht_headers_${package} PARENT_SCOPE)
    set(${variable}_FROM "headers in ${${variable}_INCLUDE}" PARENT_SCOPE)
    return()
  endif()
  set(${variable}_FROM "missing" PARENT_SCOPE)
  list(APPEND HT_MISSING_DEBIAN ${debian})
  set(HT_MISSING_DEBIAN "${HT_MISSING_DEBIAN}" PARENT_SCOPE)
  string(APPEND HT_MISSING_TEXT "  ${package} ${ARGN} (<${header}>)\n")
  set(HT_MISSING_TEXT "${HT_MISSING_TEXT}" PARENT_SCOPE)
endfunction()

ht_header_library(HT_EIGEN Eigen3 Eigen3::Eigen Eigen/Core libeigen3-dev 3.4)
ht_header_library(HT_JSON nlohmann_json nlohmann_json::nlohmann_json nlohmann/json.hpp nlohmann-json3-dev)
ht_header_library(HT_CLI11 CLI11 CLI11::CLI11 CLI/CLI.hpp libcli11-dev)
if(HALFTONE_BUILD_TESTS)
  ht_header_library(HT_DOCTEST doctest doctest::doctest doctest/doctest.h doctest-dev)
endif()

if(HT_MISSING_TEXT)
  list(JOIN HT_MISSING_DEBIAN " " packages)
  message(FATAL_ERROR "Halftone needs these libraries and did not find them:\n${HT_MISSING_TEXT}"
                      "On Debian or Ubuntu:  apt-get install ${packages}\n"
                      "Elsewhere: put their headers in a folder and pass -DHALFTONE_EXTRA_INCLUDE=<folder>.\n")
endif()

# Pictures for prediction (data/image_file.cpp); without one of them reading such a file is an error that says so.
find_package(PNG QUIET)
find_package(JPEG QUIET)

set(HT_USE_OPENMP OFF)
if(HALFTONE_OPENMP)
  find_package(OpenMP COMPONENTS CXX QUIET)
  set(HT_USE_OPENMP ${OpenMP_CXX_FOUND})
endif()
