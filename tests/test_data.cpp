#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/parallel.h"
#include "data/cifar10.h"
#include "data/synthetic.h"
#include "tests/data_helpers.h"

namespace ht::data {
namespace fs = std::filesystem;

namespace {
const std::vector<std::string> kFiles{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                      "data_batch_5.bin", "test_batch.bin",   "batches.meta.txt"};

void put(const fs::path& file, const std::string& content) {
  std::ofstream out(file, std::ios::binary);
  out << content;
}

std::string get(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A complete set of 12 training and 3 test images in `dir`.
TrainTest write_small(const fs::path& dir) {
  const TrainTest sets{random_set(12), random_set(3, 32, 32, 8)};
  write_cifar10(dir, sets);
  return sets;
}
}  // namespace

TEST_CASE("A written set reads back the same, from the folder or the one above it") {
  const TempFolder temp;
  const fs::path inner = temp.path / "cifar-10-batches-bin";
  const TrainTest sets = write_small(inner);
  for (const fs::path& dir : {temp.path, inner}) {
    const TrainTest read = read_cifar10(dir);
    CHECK(same_bytes(read.train.images, sets.train.images));
    CHECK(same_bytes(read.train.labels, sets.train.labels));
    CHECK(same_bytes(read.test.images, sets.test.images));
    CHECK(same_bytes(read.test.labels, sets.test.labels));
    CHECK(read.train.class_names == ten_names());
    CHECK(contains(read.train.source, inner.string()));
  }
  size_t entries = 0;  // no temporary file is left
  for (const auto& entry : fs::directory_iterator(inner)) {
    CHECK(std::count(kFiles.begin(), kFiles.end(), entry.path().filename()) == 1);
    ++entries;
  }
  CHECK(entries == kFiles.size());
  CHECK(fs::file_size(inner / "data_batch_1.bin") == 2 * 3073);  // 12 images over 5 files: 2 2 3 2 3
  CHECK(fs::file_size(inner / "data_batch_5.bin") == 3 * 3073);
}

TEST_CASE("A record is a label, then the red, green and blue planes") {
  const TempFolder temp;
  std::string record(3073, '\0');
  record[0] = 9;
  record[1 + 32 * 2 + 5] = 11;                             // red of row 2, column 5
  record[1 + 1024 + 32 * 2 + 5] = 22;                      // green
  record[1 + 2048 + 32 * 2 + 5] = static_cast<char>(233);  // blue
  record[1 + 2048 + 1023] = 44;                            // blue of the last pixel
  put(temp.path / "one.bin", record);
  const ImageDataset set = read_cifar10_file(temp.path / "one.bin", ten_names());
  REQUIRE(set.images.shape() == Shape{1, 32, 32, 3});
  CHECK(set.labels.item() == 9);
  CHECK(set.images.at((2 * 32 + 5) * 3 + 0) == 11);
  CHECK(set.images.at((2 * 32 + 5) * 3 + 1) == 22);
  CHECK(set.images.at((2 * 32 + 5) * 3 + 2) == 233);
  CHECK(set.images.at(3071) == 44);
  const std::vector<double> all = set.images.to_vector();
  CHECK(std::count(all.begin(), all.end(), 0.0) == 3072 - 4);
}

TEST_CASE("A folder that is missing, empty or incomplete: the error lists every place and file") {
  const TempFolder temp;
  const fs::path gone = temp.path / "gone";
  std::string text = error_of([&] { read_cifar10(gone); });
  CHECK(contains(text, gone.string() + " (no such folder)"));
  CHECK(contains(text, (gone / "cifar-10-batches-bin").string() + " (no such folder)"));
  CHECK(contains(text, "data_batch_1.bin .. data_batch_5.bin, test_batch.bin and batches.meta.txt"));

  text = error_of([&] { read_cifar10(temp.path); });
  CHECK(contains(text, temp.path.string() + " (the folder is empty)"));
  CHECK(contains(text, "cifar-10-batches-bin (no such folder)"));

  write_small(temp.path);
  fs::remove(temp.path / "data_batch_3.bin");
  fs::remove(temp.path / "test_batch.bin");
  text = error_of([&] { read_cifar10(temp.path); });
  CHECK(contains(text, temp.path.string() + " (no data_batch_3.bin, no test_batch.bin)"));

  put(temp.path / "file", "x");
  CHECK(contains(error_of([&] { read_cifar10(temp.path / "file"); }), "(not a folder)"));
  CHECK(contains(error_of([&] { read_cifar10(""); }), "cifar10: no complete data set found"));
}

TEST_CASE("A file that is cut off, too long, empty or mislabelled: the error names file, size, record") {
  const TempFolder temp;
  const fs::path file = temp.path / "data_batch_2.bin";
  write_small(temp.path);
  const std::string good = get(file);
  REQUIRE(good.size() == 2 * 3073);
  const auto error_with = [&](const std::string& content) {
    put(file, content);
    const std::string text = error_of([&] { read_cifar10(temp.path); });
    CHECK(contains(text, file.string()));
    return text;
  };
  CHECK(contains(error_with(good.substr(0, 4000)), "has 4000 bytes: 1 records of 3073 bytes and 927 bytes more"));
  CHECK(contains(error_with(good + "xy"), "has 6148 bytes: 2 records of 3073 bytes and 2 bytes more"));
  CHECK(contains(error_with(good.substr(0, 100)), "has 100 bytes: 0 records"));
  CHECK(contains(error_with(""), "is empty"));
  std::string bad = good;
  bad[3073] = 10;
  CHECK(contains(error_with(bad), "record 1 has label 10; labels are 0..9"));
  bad[0] = static_cast<char>(255);
  CHECK(contains(error_with(bad), "record 0 has label 255"));
  put(file, good);
  CHECK_NOTHROW(read_cifar10(temp.path));
}

TEST_CASE("A file that cannot be read") {
  const TempFolder temp;
  write_small(temp.path);
  const fs::path file = temp.path / "data_batch_4.bin";
  fs::remove(file);
  fs::create_directories(file);
  std::string text = error_of([&] { read_cifar10(temp.path); });
  CHECK(contains(text, file.string() + " cannot be read: it is not a regular file"));
  fs::remove(file);
  put(file, std::string(3073, '\1'));
  CHECK(read_cifar10(temp.path).train.size() == 12 - 2 + 1);
  if (geteuid() != 0) {  // root reads everything
    fs::permissions(file, fs::perms::none);
    text = error_of([&] { read_cifar10(temp.path); });
    CHECK(contains(text, file.string() + " cannot be read: Permission denied"));
  }
}

TEST_CASE("Class names: ten lines, blank ones and carriage returns ignored") {
  const TempFolder temp;
  write_small(temp.path);
  const fs::path meta = temp.path / "batches.meta.txt";
  put(meta, "a\r\nb\nc\nd\n\ne\nf\ng\nh\ni\nj\n\n\n");
  CHECK(read_cifar10(temp.path).test.class_names == ten_names());
  put(meta, "a\nb\n");
  CHECK(contains(error_of([&] { read_cifar10(temp.path); }), meta.string() + " names 2 classes; it must hold 10"));
  put(meta, "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n");
  CHECK(contains(error_of([&] { read_cifar10(temp.path); }), "more than 10 classes"));
}

TEST_CASE("Writing refuses what the format cannot hold, and folders it cannot make") {
  const TempFolder temp;
  const ImageDataset ok = random_set(5);
  CHECK(contains(error_of([&] { write_cifar10(temp.path, {random_set(4), ok}); }), "train has 4 images"));
  CHECK(contains(error_of([&] { write_cifar10(temp.path, {random_set(5, 16, 16), ok}); }), "must be 32x32"));
  ImageDataset bad = random_set(5);
  bad.labels.data<int32_t>()[3] = 10;
  CHECK(contains(error_of([&] {
                   write_cifar10(temp.path, {ok, bad});
                 }),
                 "image 3 has label 10 but there are 10 classes"));
  bad = random_set(5);
  bad.class_names.pop_back();
  bad.class_names[0] = "other";
  CHECK(contains(error_of([&] { write_cifar10(temp.path, {bad, ok}); }), "9 classes"));
  bad.class_names.push_back("j");
  CHECK(contains(error_of([&] { write_cifar10(temp.path, {bad, ok}); }), "different classes"));
  put(temp.path / "file", "x");
  CHECK(contains(error_of([&] { write_cifar10(temp.path / "file" / "sub", {ok, ok}); }), "cannot be made"));
  fs::create_directories(temp.path / "full" / "data_batch_1.bin" / "occupied");
  const std::string text = error_of([&] { write_cifar10(temp.path / "full", {ok, ok}); });
  CHECK(contains(text, "data_batch_1.bin cannot be written: "));
  CHECK(!fs::exists(temp.path / "full" / "data_batch_1.bin.tmp"));
}

TEST_CASE("limit, subset and split") {
  const ImageDataset all = random_set(20, 4, 5);
  CHECK(all.limit(100).size() == 20);
  const ImageDataset first = all.limit(3);
  CHECK(first.size() == 3);
  CHECK(same_bytes(first.images, all.images.rows(0, 3)));
  CHECK(contains(first.source, "first 3 of 20"));
  CHECK(contains(error_of([&] { all.limit(0); }), "limit: 0 images"));

  const std::vector<int64_t> indices{7, 0, 7};
  const ImageDataset some = all.subset(indices);
  CHECK(same_bytes(some.images.rows(0, 1), all.images.rows(7, 8)));
  CHECK(same_bytes(some.images.rows(1, 2), all.images.rows(0, 1)));
  CHECK(some.labels.to_vector() == std::vector<double>{1, 0, 1});
  const std::vector<int64_t> outside{20};
  CHECK(contains(error_of([&] { all.subset(outside); }), "index 20 is outside the 20 images"));

  const TrainTest parts = split(numbered_set(50), 10, 3);
  std::set<double> seen;
  for (const ImageDataset* part : {&parts.train, &parts.test}) {
    double last = -1;
    for (int64_t i = 0; i < part->size(); ++i) {
      const double number = part->images.at(i * 48);
      CHECK(number > last);
      CHECK(part->labels.at(i) == static_cast<int>(3 * number) % 10);
      seen.insert(last = number);
    }
  }
  CHECK(parts.test.size() == 10);
  CHECK(seen.size() == 50);
  CHECK(same_bytes(parts.test.images, split(numbered_set(50), 10, 3).test.images));
  CHECK(!same_bytes(parts.test.images, split(numbered_set(50), 10, 4).test.images));
  CHECK(contains(error_of([&] { split(all, 20, 0); }), "cannot hold out 20 of 20"));
  CHECK(contains(error_of([&] { split(all, 0, 0); }), "cannot hold out 0 of 20"));
}

TEST_CASE("mirrored: each row of pixels back to front, the pixels' channels as they were") {
  ImageDataset set{Tensor::from({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {1, 2, 2, 3}, DType::u8),
                   Tensor::from({0}, {1}, DType::i32),
                   {"a"},
                   "s"};
  CHECK(set.mirrored().images.to_vector() == std::vector<double>{4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9});
  CHECK(set.images.at(0) == 1);
}

TEST_CASE("validate names what is wrong") {
  ImageDataset set;
  CHECK(contains(error_of([&] { set.validate("t"); }), "t: the data set has no images"));
  set = random_set(4, 4, 4);
  CHECK(set.class_counts() == std::vector<int64_t>{1, 0, 0, 1, 0, 0, 1, 0, 0, 1});
  set.labels = Tensor::zeros({3}, DType::i32);
  CHECK(contains(error_of([&] { set.validate("t"); }), "one for each of the 4 images (labels [3] i32 cpu)"));
  set.labels = Tensor::zeros({4}, DType::i64);
  CHECK(contains(error_of([&] { set.validate("t"); }), "labels must be i32"));
  set = random_set(4, 4, 4);
  set.images = Tensor::zeros({4, 3, 4, 4}, DType::u8);
  CHECK(contains(error_of([&] { set.validate("t"); }), "images must be u8 [n,h,w,3] (images [4,3,4,4] u8 cpu)"));
  set = random_set(4, 4, 4);
  set.labels.data<int32_t>()[2] = -1;
  CHECK(contains(error_of([&] { set.validate("t"); }), "image 2 has label -1"));
}

TEST_CASE("The generated set is balanced, reproducible, and grows without changing") {
  const TrainTest sets = make_synthetic({.train = 200, .test = 50, .seed = 5});
  CHECK(sets.train.images.shape() == Shape{200, 32, 32, 3});
  CHECK(sets.train.class_counts() == std::vector<int64_t>(10, 20));
  CHECK(sets.test.class_counts() == std::vector<int64_t>(10, 5));
  CHECK(contains(sets.train.source, "generated"));
  const int threads = num_threads();
  set_num_threads(1);
  const TrainTest again = make_synthetic({.train = 60, .test = 50, .seed = 5});
  set_num_threads(threads);
  CHECK(same_bytes(again.train.images, sets.train.images.rows(0, 60)));
  CHECK(same_bytes(again.test.images, sets.test.images));
  CHECK(!same_bytes(again.test.images, again.train.images.rows(0, 50)));
  const TrainTest other = make_synthetic({.train = 60, .test = 1, .seed = 6});
  CHECK(!same_bytes(other.train.images, again.train.images));
  CHECK(contains(error_of([] { make_synthetic({.train = 0}); }), "0 images for the training set"));

  // Images are textured and unlike one another: no two share their bytes, and none is flat.
  std::set<std::string> distinct;
  for (int64_t i = 0; i < 200; ++i) {
    const uint8_t* p = sets.train.images.data<uint8_t>() + i * 3072;
    distinct.emplace(reinterpret_cast<const char*>(p), 3072);
    const auto [low, high] = std::minmax_element(p, p + 3072);
    CHECK(*high - *low > 60);
  }
  CHECK(distinct.size() == 200);
}

TEST_CASE("The generated set has the same bytes on every machine") {
  const TrainTest sets = make_synthetic({.train = 100, .test = 10, .seed = 0});
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const ImageDataset* set : {&sets.train, &sets.test})
    for (int64_t i = 0; i < set->images.numel(); ++i) hash = (hash ^ set->images.data<uint8_t>()[i]) * 1099511628211ull;
  CHECK(hash == 10600765929589334244ull);
}

TEST_CASE("A generated set survives the file format") {
  const TempFolder temp;
  const TrainTest sets = make_synthetic({.train = 23, .test = 7, .seed = 1});
  write_cifar10(temp.path, sets);
  const TrainTest read = read_cifar10(temp.path);
  CHECK(same_bytes(read.train.images, sets.train.images));
  CHECK(same_bytes(read.test.labels, sets.test.labels));
  CHECK(read.train.class_names == sets.train.class_names);
}

TEST_CASE("permutation: every index once, uniform, different each epoch and seed") {
  for (const int64_t n : {0, 1, 2, 7, 1000}) {
    std::vector<int32_t> order = permutation(n, 3, 4);
    CHECK(order == permutation(n, 3, 4));
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) CHECK(order[static_cast<size_t>(i)] == i);
  }
  CHECK(permutation(100, 0, 0) != permutation(100, 0, 1));
  CHECK(permutation(100, 0, 0) != permutation(100, 1, 0));
  CHECK(contains(error_of([] { permutation(int64_t{1} << 31, 0, 0); }), "32-bit"));

  // Over 24,000 epochs each of the 24 orders of four items comes about 1,000 times (deviation 31).
  std::map<std::vector<int32_t>, int> counts;
  for (uint64_t epoch = 0; epoch < 24000; ++epoch) ++counts[permutation(4, 9, epoch)];
  CHECK(counts.size() == 24);
  for (const auto& [order, count] : counts) CHECK(std::abs(count - 1000) < 150);
}

}  // namespace ht::data
