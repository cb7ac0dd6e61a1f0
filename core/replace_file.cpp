#include "core/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "core/file.h"

namespace ht {

std::optional<ReplaceFailure> replace_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  static std::atomic<int> count{0};
  const std::string temporary = str(path, '.', getpid(), '-', count++, ".tmp");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const auto failed = [&](const char* what, const char* remedy) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ReplaceFailure{what, std::strerror(error), remedy};
  };
  constexpr const char* kSpace = "is the disk full?";

  File file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.is_open()) return failed("create", "does its folder exist, and may you write there?");
  for (std::span<const std::byte> rest : parts) {
    while (!rest.empty()) {
      const ssize_t n = ::write(file.fd(), rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed("write", kSpace);
      rest = rest.subspan(static_cast<size_t>(n));
    }
  }
  if (::fsync(file.fd()) != 0) return failed("write", kSpace);
  if (file.close() != 0) return failed("write", kSpace);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return failed("replace", "is there a folder of that name?");
  // The new name itself, too. Some file systems cannot do this for folders; the file is whole all the same.
  const File parent(folder, O_RDONLY | O_DIRECTORY);
  if (parent.is_open()) ::fsync(parent.fd());
  return std::nullopt;
}

std::optional<ReplaceFailure> replace_file(const std::string& path, std::string_view content) {
  const std::span<const std::byte> part = std::as_bytes(std::span(content));
  return replace_file(path, std::span(&part, 1));
}

}  // namespace ht
