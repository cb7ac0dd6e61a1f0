// The built programs, run as a person would: their exit code, their words, files in a folder of their own.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/error_of.h"

namespace ht {

namespace fs = std::filesystem;

inline fs::path program(const std::string& name) {
  return fs::read_symlink("/proc/self/exe").parent_path() / "bin" / name;
}

// A folder that goes away with the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("halftone_test_programs_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

inline std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Result {
  int code = -1;
  std::string out, err;
};

class Process {
 public:
  Process(const fs::path& exe, std::vector<std::string> args, const Folder& folder)
      : out_(folder / "stdout"), err_(folder / "stderr") {
    args.insert(args.begin(), exe.string());
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const auto redirect = [](const std::string& path, int to) {
        dup2(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), to);
      };
      redirect(out_, STDOUT_FILENO);
      redirect(err_, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  void signal(int number) const { kill(pid_, number); }
  std::string out() const { return read(out_); }
  Result wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read(out_), read(err_)};
  }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
};

}  // namespace ht
