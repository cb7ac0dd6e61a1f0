// What an Error says, for tests of error texts.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace ht {

// The text of the Error that f throws; "no error" when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace ht
