// The safetensors format: what is written reads back, every rule broken by a file made by hand, files cut at every
// byte, mutated files (HALFTONE_FUZZ=N: that many), and writes that fail.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <random>

#include "core/allocator.h"
#include "core/safetensors.h"
#include "tests/data_helpers.h"

using namespace ht;
namespace fs = std::filesystem;
using data::TempFolder;

namespace {
std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
// Always a new file: some file systems bring one that is overwritten to the disk at once.
void write(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data_bytes, '\1');
}

// What the reader says of a file with this header and so many bytes of data.
std::string refusal(const std::string& header, size_t data_bytes) {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  write(path, file_of(header, data_bytes));
  return error_of([&] { SafeTensors{path}; });
}

std::map<std::string, Tensor> one_of_each() {
  std::map<std::string, Tensor> all;
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64})
    all[str("tensor.", t)] = Tensor::from({1, 2, 250, 4, 5, 6}, {2, 3}, t);
  all["scalar"] = Tensor::full({}, -0.5);
  all["none"] = Tensor::empty({3, 0, 2}, DType::bf16);
  all["odd \"name\"\n\xc3\xa4"] = Tensor::from({1, 2, 3}, {3}, DType::u8);
  return all;
}

int files_in(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}
}  // namespace

TEST_CASE("every dtype, odd names, empty tensors and metadata read back, and the bytes are the same each time") {
  const TempFolder folder;
  const std::string path = folder.path / "a.safetensors", again = folder.path / "b.safetensors";
  const auto all = one_of_each();
  const Metadata metadata{{"format", "pt"}, {"empty", ""}, {"quote", "\"\\\n"}};
  save_safetensors(path, all, metadata);
  save_safetensors(again, all, metadata);
  CHECK(read(path) == read(again));
  CHECK(files_in(folder.path) == 2);

  const SafeTensors file(path);
  CHECK(file.metadata() == metadata);
  CHECK(file.file_bytes() == fs::file_size(path));
  REQUIRE(file.entries().size() == all.size());
  for (const auto& [name, tensor] : all) {
    CHECK_MESSAGE(data::same_bytes(file.tensor(name), tensor), name);
    CHECK(reinterpret_cast<uintptr_t>(file.bytes(name).data()) % size_of(tensor.dtype()) == 0);
  }
  CHECK(file.tensors().size() == all.size());
  CHECK(file.tensors("tensor.").size() == 7);
  CHECK(file.tensors("tensor.").contains("f16"));
  CHECK(contains(error_of([&] { file.tensor("absent"); }), "has no tensor 'absent'"));

  save_safetensors(path, {});  // nothing at all is a legal file, and replaces the old one
  CHECK(SafeTensors(path).entries().empty());
  CHECK(SafeTensors(again).entries().size() == all.size());
}

TEST_CASE("the layout on disk, byte for byte") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  save_safetensors(path, {{"b", Tensor::from({1}, {1}, DType::f32)}, {"a", Tensor::from({7}, {1}, DType::u8)}},
                   {{"k", "v"}});
  std::string header = R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[4,5],"dtype":"U8","shape":[1]},)"
                       R"("b":{"data_offsets":[0,4],"dtype":"F32","shape":[1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(read(path) == file_of(header, 0) + std::string("\0\0\x80\x3f\7", 5));
}

TEST_CASE("every rule of the format, broken by hand") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(refusal(good, 8) == "no error");
  CHECK(refusal(good + "   ", 8) == "no error");
  CHECK(refusal("{}", 0) == "no error");
  struct Bad {
    std::string header;
    size_t bytes;
    const char* error;
  };
  const auto tensor = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::vector<Bad> all{
      // JSON
      {"", 0, "too few for a header"},
      {"", 8, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"{", 8, "not valid JSON"},
      {"{}}", 0, "not valid JSON"},
      {"{} x", 0, "not valid JSON"},
      {std::string("{}\0", 3), 0, "not valid JSON"},
      {"{\"a\xff\":{}}", 0, "not valid JSON"},
      {"{\"a\":{\"dtype\":\"F32\",}}", 0, "not valid JSON"},
      {std::string("{\"a\":") + std::string(100000, '['), 0, "tensor 'a': has an array where the format has none"},
      // what stands where
      {"{\"a\":1}", 0, "tensor 'a': has a number where the format has none"},
      {"{\"a\":null}", 0, "has null"},
      {"{\"a\":true}", 0, "has a boolean"},
      {"{\"a\":\"b\"}", 0, "has a text"},
      {"{\"a\":{}}", 0, "tensor 'a': lacks its dtype"},
      {tensor(R"("dtype":"F32","data_offsets":[0,8])"), 8, "lacks its shape"},
      {tensor(R"("dtype":"F32","shape":[2])"), 8, "lacks its data_offsets"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), 8, "the field 'x' is unknown"},
      {tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8,
       "the field 'dtype' stands there twice"},
      {tensor(R"("dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8])"), 8,
       "the field 'shape' stands there twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       16, "tensor 'a': the name stands there twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "the name stands there twice"},
      {R"({"__metadata__":{"k":"v","k":"v"}})", 0, "the key 'k' stands there twice"},
      {R"({"__metadata__":{"k":1}})", 0, "has a number"},
      {R"({"__metadata__":{"k":{}}})", 0, "has an object"},
      {R"({"__metadata__":[]})", 0, "has an array"},
      // dtype
      {tensor(R"("dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2])"), 2, "dtype 'F8_E4M3' is not one of Halftone's"},
      {tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), 8, "dtype 'f32'"},
      {tensor(R"("dtype":4,"shape":[2],"data_offsets":[0,8])"), 8, "has a number"},
      // shape
      {tensor(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8, "has a number"},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8, "has a negative number"},
      {tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8, "has a number that is no 64-bit integer"},
      {tensor(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), 8, "has a text"},
      {tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8, "has an array"},
      {tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8, "has 8 bytes, but its shape [3] f32 needs 12"},
      {tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,8])"), 8, "needs 4"},
      {tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
       "the rank is above the limit of 8"},
      {tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), 1, "does not fit 63 bits"},
      {tensor(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1])"), 1, "no 64-bit integer"},
      {tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0, "does not fit 63 bits"},
      {tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), 0, "more than 64 bits can count"},
      // offsets
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "data_offsets has 1 numbers"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), 8, "more than its two numbers"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8, "before its begin"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7,
       "ends at byte 8, but the file has 7 bytes of data"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9,
       "the tensors end at byte 8 of the data, but the file has 9"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])"), 9, "after a hole that begins at 0"},
      {tensor(R"("dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615])"), 0,
       "but the file has 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'b': begins at byte 1, inside the tensor before it, which ends at 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5, "tensor 'b': begins at byte 3, after a hole that begins at 2"},
      {"{}", 1, "the tensors end at byte 0"},
  };
  for (const Bad& bad : all) {
    const std::string error = refusal(bad.header, bad.bytes);
    CHECK_MESSAGE(contains(error, bad.error), bad.header.substr(0, 200), ": ", error);
    CHECK_MESSAGE(contains(error, "safetensors: '"), error);
  }
}

TEST_CASE("a header length beyond the file or the limit, and things that are no files") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  const auto says = [&](uint64_t length, const char* text) {
    write(path, std::string(reinterpret_cast<const char*>(&length), 8) + "{}      ");
    const std::string error = error_of([&] { SafeTensors{path}; });
    CHECK_MESSAGE(contains(error, text), error);
  };
  says(8, "no error");
  says(9, "its header has 9 bytes, but the file ends after 8");
  says(0, "does not begin with '{'");
  says(100'000'001, "above the limit of 100000000");
  says(UINT64_MAX, "above the limit");
  CHECK(contains(error_of([&] { SafeTensors{folder.path / "absent"}; }), "No such file"));
  CHECK(contains(error_of([&] { SafeTensors{folder.path}; }), "is not a regular file"));
  mkfifo((folder.path / "pipe").c_str(), 0600);
  CHECK(contains(error_of([&] { SafeTensors{folder.path / "pipe"}; }), "is not a regular file"));
}

TEST_CASE("a file cut at any byte, or with a byte more, is refused") {
  const TempFolder folder;
  const std::string whole = folder.path / "whole", cut = folder.path / "cut";
  save_safetensors(whole, one_of_each(), {{"k", "v"}});
  const std::string bytes = read(whole);
  for (size_t n = 0; n < bytes.size(); ++n) {
    write(cut, bytes.substr(0, n));
    CHECK_MESSAGE(contains(error_of([&] { SafeTensors{cut}; }), "safetensors: '"), n);
  }
  write(cut, bytes + '\0');
  CHECK(contains(error_of([&] { SafeTensors{cut}; }), "it is damaged"));
}

// Mutates bytes, numbers and lengths of a good file: the reader gives a file whose tensors lie inside it, or an Error.
TEST_CASE("mutated files: an Error or a sound file, never more memory than the file") {
  const char* runs_text = std::getenv("HALFTONE_FUZZ");
  const int runs = runs_text ? std::atoi(runs_text) : 4000;
  const TempFolder folder;
  const std::string whole = folder.path / "whole", mutant = folder.path / "mutant";
  save_safetensors(whole, one_of_each(), {{"k", "v"}, {"format", "pt"}});
  const std::string seed_file = read(whole);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, seed_file.data(), 8);
  const std::string words[] = {"{",
                               "}",
                               "[",
                               "]",
                               "\"",
                               ",",
                               ":",
                               "0",
                               "9",
                               "-1",
                               "1e9",
                               "null",
                               "\\u0000",
                               "F32",
                               "\"shape\":",
                               "18446744073709551615",
                               "9223372036854775807",
                               "__metadata__"};
  std::mt19937_64 random(11);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  for (int run = 0; run < runs; ++run) {
    std::string bytes = seed_file;
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t in_header = 8 + below(std::min<size_t>(header_bytes, bytes.size() - 8));
      const size_t at = std::min(below(8) == 0 ? below(bytes.size()) : in_header, bytes.size() - 1);
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.erase(at, std::min(1 + below(8), bytes.size() - 16));
          break;
        case 3:
          bytes.insert(at, words[below(std::size(words))]);
          break;
        case 4:
          bytes.replace(at, 1, words[below(std::size(words))]);
          break;
        default:  // a piece of it once more
          bytes.insert(at, bytes.substr(8 + below(bytes.size() - 8), below(64)));
      }
      if (bytes.size() < 32) bytes.resize(32, ' ');
    }
    if (below(2) == 0) {  // keep the header's length true, so that the JSON is reached as it was meant
      const uint64_t length = header_bytes + bytes.size() - seed_file.size();
      std::memcpy(bytes.data(), &length, 8);
    }
    write(mutant, bytes);
    try {
      const SafeTensors file(mutant);
      size_t total = 0;
      for (const auto& [name, entry] : file.entries()) total += file.tensor(name).bytes();
      REQUIRE(total <= bytes.size());
      ++accepted;
    } catch (const Error& e) {
      REQUIRE(std::string(e.what()).starts_with("safetensors: '"));
    }
  }
  CHECK(accepted > runs / 100);  // in the data, or in names: not all of it is refused
  CHECK(accepted < runs);
}

TEST_CASE("a write that fails says why, leaves nothing behind, and the old file as it was") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  const Tensor large = Tensor::zeros({100'000});
  const auto save = [&](const std::string& where) {
    return error_of([&] { save_safetensors(where, {{"large", large}}); });
  };
  save_safetensors(path, {{"small", Tensor::full({1}, 3)}});
  const std::string before = read(path);

  // As on a full disk: the kernel refuses to write beyond 64 KiB.
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit tight{65536, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string full = save(path);
  setrlimit(RLIMIT_FSIZE, &old);
  CHECK_MESSAGE(contains(full, "is the disk full?"), full);
  CHECK(contains(full, path));
  CHECK(read(path) == before);
  CHECK(files_in(folder.path) == 1);

  CHECK(contains(save(folder.path / "absent" / "x"), "does its folder exist"));
  CHECK(contains(save("/proc/halftone.safetensors"), "may you write there?"));
  fs::create_directories(folder.path / "taken");
  CHECK(contains(save(folder.path / "taken"), "is there a folder of that name?"));
  if (geteuid() != 0) {  // root may write everywhere
    fs::permissions(folder.path, fs::perms::owner_read | fs::perms::owner_exec);
    CHECK(contains(save(path), "Permission denied"));
    fs::permissions(folder.path, fs::perms::owner_all);
  }
  CHECK(read(path) == before);
  CHECK(files_in(folder.path) == 2);
  CHECK(save(path) == "no error");
  CHECK(SafeTensors(path).tensor("large").numel() == 100'000);
}

TEST_CASE("what cannot be in a file") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  const auto save = [&](const std::string& name, const Tensor& t, const Metadata& m = {}) {
    return error_of([&] { save_safetensors(path, {{name, t}}, m); });
  };
  const Tensor t = Tensor::zeros({1});
  CHECK(contains(save("a", {}), "tensor 'a' is undefined"));
  CHECK(contains(save("__metadata__", t), "no tensor may be named"));
  CHECK(contains(save("\xff", t), "not UTF-8"));
  CHECK(contains(save("a", t, {{"k", "\xff"}}), "not UTF-8"));
  CHECK(files_in(folder.path) == 0);
}
