// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ht {

struct ReplaceFailure {
  const char* what;    // "create", "write" or "replace" the file
  std::string cause;   // the system's words
  const char* remedy;  // "is the disk full?"
};

// Writes `parts` one after another to a file beside `path`, waits until they are on the disk, and renames it to `path`:
// readers see the old file or the whole new one. On a failure a file of that name is as it was.
std::optional<ReplaceFailure> replace_file(const std::string& path, std::span<const std::span<const std::byte>> parts);
std::optional<ReplaceFailure> replace_file(const std::string& path, std::string_view content);

}  // namespace ht
