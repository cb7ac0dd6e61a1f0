#include "data/cifar10.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/replace_file.h"

namespace ht::data {

namespace fs = std::filesystem;

namespace {
constexpr int64_t kSide = 32, kPixels = kSide * kSide, kRecord = 1 + 3 * kPixels, kClasses = 10;
constexpr std::array<const char*, 5> kTrainFiles{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                 "data_batch_4.bin", "data_batch_5.bin"};
constexpr const char* kTestFile = "test_batch.bin";
constexpr const char* kMetaFile = "batches.meta.txt";

const char* reason() { return errno ? std::strerror(errno) : "unknown reason"; }

// Empty when `dir` holds all seven files, else what is wrong with it.
std::string whats_missing(const fs::path& dir) {
  std::error_code error;
  const fs::file_status status = fs::status(dir, error);
  if (status.type() == fs::file_type::not_found) return "no such folder";
  if (status.type() == fs::file_type::none) return error.message();
  if (!fs::is_directory(status)) return "not a folder";
  const fs::directory_iterator entries(dir, error);
  if (error) return error.message();
  if (entries == fs::directory_iterator()) return "the folder is empty";
  std::string missing;
  const auto look_for = [&](const char* name) {
    if (!fs::exists(dir / name, error)) missing += (missing.empty() ? "no " : ", no ") + std::string(name);
  };
  for (const char* name : kTrainFiles) look_for(name);
  look_for(kTestFile);
  look_for(kMetaFile);
  return missing;
}

std::ifstream open_to_read(const fs::path& file) {
  std::error_code error;
  check(fs::is_regular_file(file, error), "cifar10: ", file.string(),
        " cannot be read: ", error ? error.message() : "it is not a regular file");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  check(in.is_open(), "cifar10: ", file.string(), " cannot be read: ", reason());
  return in;
}

// Whole records in a file.
int64_t count_records(const fs::path& file) {
  open_to_read(file);
  std::error_code error;
  const uintmax_t size = fs::file_size(file, error);
  check(!error, "cifar10: ", file.string(), " cannot be read: ", error.message());
  check(size > 0, "cifar10: ", file.string(), " is empty; it must hold records of ", kRecord, " bytes");
  check(size % kRecord == 0, "cifar10: ", file.string(), " has ", size, " bytes: ", size / kRecord, " records of ",
        kRecord, " bytes and ", size % kRecord,
        " bytes more; the file is cut off, damaged or not in CIFAR-10's binary format");
  return static_cast<int64_t>(size / kRecord);
}

void read_records(const fs::path& file, int64_t n, uint8_t* image, int32_t* label) {
  std::ifstream in = open_to_read(file);
  std::array<uint8_t, kRecord> record;
  for (int64_t i = 0; i < n; ++i, image += 3 * kPixels) {
    errno = 0;
    in.read(reinterpret_cast<char*>(record.data()), kRecord);
    check(in.gcount() == kRecord, "cifar10: ", file.string(), ": reading record ", i, " of ", n,
          " failed: ", in.bad() ? reason() : "the file ended early");
    check(record[0] < kClasses, "cifar10: ", file.string(), ": record ", i, " has label ", int{record[0]},
          "; labels are 0..9, so the file is damaged or not in CIFAR-10's binary format");
    label[i] = record[0];
    for (int64_t p = 0; p < kPixels; ++p)
      for (int64_t c = 0; c < 3; ++c) image[3 * p + c] = record[static_cast<size_t>(1 + c * kPixels + p)];
  }
}

// All records of several files, one after another.
ImageDataset read_files(const std::vector<fs::path>& files, std::vector<std::string> class_names, std::string source) {
  std::vector<int64_t> counts;
  int64_t n = 0;
  for (const fs::path& file : files) n += counts.emplace_back(count_records(file));
  ImageDataset set{Tensor::empty({n, kSide, kSide, 3}, DType::u8), Tensor::empty({n}, DType::i32),
                   std::move(class_names), std::move(source)};
  int64_t at = 0;
  for (size_t f = 0; f < files.size(); at += counts[f++])
    read_records(files[f], counts[f], set.images.data<uint8_t>() + at * 3 * kPixels, set.labels.data<int32_t>() + at);
  return set;
}

void write_whole(const fs::path& file, const std::string& content) {
  if (const auto failure = replace_file(file.string(), content))
    fail("cifar10: ", file.string(), " cannot be written: ", failure->cause);
}

// Records [begin, end) of a set in file order.
std::string to_records(const ImageDataset& set, int64_t begin, int64_t end) {
  std::string records(static_cast<size_t>((end - begin) * kRecord), '\0');
  for (int64_t i = begin; i < end; ++i) {
    char* record = records.data() + (i - begin) * kRecord;
    const uint8_t* image = set.images.data<uint8_t>() + i * 3 * kPixels;
    record[0] = static_cast<char>(set.labels.data<int32_t>()[i]);
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t p = 0; p < kPixels; ++p) record[1 + c * kPixels + p] = static_cast<char>(image[3 * p + c]);
  }
  return records;
}

void check_writable_set(const ImageDataset& set, std::string_view name, int64_t least) {
  set.validate("write_cifar10");
  check(set.images.dim(1) == kSide && set.images.dim(2) == kSide, "write_cifar10: images must be 32x32 (",
        Named{name, set.images}, ")");
  check(set.classes() == kClasses, "write_cifar10: ", name, " has ", set.classes(), " classes; the format needs ",
        kClasses);
  check(set.size() >= least, "write_cifar10: ", name, " has ", set.size(), " images; the format needs at least ",
        least);
}
}  // namespace

std::vector<std::string> read_class_names(const fs::path& file) {
  std::ifstream in = open_to_read(file);
  std::vector<std::string> names;
  for (std::string line; names.size() <= kClasses && std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  check(names.size() == kClasses, "cifar10: ", file.string(), " names ", names.size() > kClasses ? "more than " : "",
        std::min<size_t>(names.size(), kClasses), " classes; it must hold ", kClasses, " names, one a line");
  return names;
}

ImageDataset read_cifar10_file(const fs::path& file, std::vector<std::string> class_names) {
  check(class_names.size() == kClasses, "cifar10: ", class_names.size(), " class names given; the format has ",
        kClasses);
  return read_files({file}, std::move(class_names), file.string());
}

TrainTest read_cifar10(const fs::path& dir) {
  const std::array<fs::path, 2> places{dir, dir / "cifar-10-batches-bin"};
  const fs::path* found = nullptr;
  std::string tried;
  for (const fs::path& place : places) {
    const std::string missing = whats_missing(place);
    if (missing.empty()) {
      found = &place;
      break;
    }
    tried += str(tried.empty() ? "" : "; ", place.string(), " (", missing, ")");
  }
  check(found != nullptr, "cifar10: no complete data set found; looked in ", tried,
        "; give the folder that holds data_batch_1.bin .. data_batch_5.bin, test_batch.bin and batches.meta.txt");

  const std::vector<std::string> names = read_class_names(*found / kMetaFile);
  std::vector<fs::path> train;
  for (const char* name : kTrainFiles) train.push_back(*found / name);
  return {read_files(train, names, str(found->string(), ", training set")),
          read_files({*found / kTestFile}, names, str(found->string(), ", test set"))};
}

void write_cifar10(const fs::path& dir, const TrainTest& sets) {
  check_writable_set(sets.train, "train", static_cast<int64_t>(kTrainFiles.size()));
  check_writable_set(sets.test, "test", 1);
  check(sets.train.class_names == sets.test.class_names, "write_cifar10: train and test name different classes");
  std::string meta;
  for (const std::string& name : sets.train.class_names) {
    check(!name.empty() && name.find('\n') == std::string::npos, "write_cifar10: class name '", name,
          "' must be one line and not empty");
    meta += name + '\n';
  }
  std::error_code error;
  fs::create_directories(dir, error);
  check(!error, "cifar10: folder ", dir.string(), " cannot be made: ", error.message());
  const int64_t n = sets.train.size(), files = static_cast<int64_t>(kTrainFiles.size());
  for (int64_t f = 0; f < files; ++f)
    write_whole(dir / kTrainFiles[static_cast<size_t>(f)], to_records(sets.train, n * f / files, n * (f + 1) / files));
  write_whole(dir / kTestFile, to_records(sets.test, 0, sets.test.size()));
  write_whole(dir / kMetaFile, meta);
}

}  // namespace ht::data
