// Errors and checks. Every message reads `<op>: <fact with numbers> (<argument> <shape> <dtype> <device>, ...)`.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ht {

// The only exception type Halftone throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Streams all parts into one string.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

// Throws Error with the joined parts unless `ok`. The parts are only formatted on failure.
template <class... Parts>
inline void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(parts...);
}

}  // namespace ht
