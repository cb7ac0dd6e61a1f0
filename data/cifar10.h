// The CIFAR-10 binary format: files of 3,073-byte records, each a label byte 0..9, then 1,024 red, 1,024 green and
// 1,024 blue bytes, row-major. Format: https://www.cs.toronto.edu/~kriz/cifar.html
#pragma once

#include <filesystem>

#include "data/dataset.h"

namespace ht::data {

// Reads data_batch_1.bin .. data_batch_5.bin, test_batch.bin and batches.meta.txt from `dir` or
// `dir`/cifar-10-batches-bin. Files may hold any number of whole records (the official ones hold 10,000 each), so that
// smaller and generated sets fit. Throws Error listing every path tried when something is missing, and naming file,
// size or record when a file is empty, cut off, unreadable or has a label above 9.
TrainTest read_cifar10(const std::filesystem::path& dir);

// The ten names in batches.meta.txt, one a line. Throws Error naming the file when it is unreadable or holds no ten.
std::vector<std::string> read_class_names(const std::filesystem::path& file);

// One file of records -> images u8 [n,32,32,3] and labels i32 [n]. Throws Error as above.
ImageDataset read_cifar10_file(const std::filesystem::path& file, std::vector<std::string> class_names);

// Writes the same seven files into `dir`, making it when needed; the training images are shared out over five files in
// order. Each file appears whole or not at all (written under a temporary name, then renamed). Throws Error unless both
// sets are 32x32 with the same ten classes, there are at least 5 training images and 1 test image, and `dir` is
// writable.
void write_cifar10(const std::filesystem::path& dir, const TrainTest& sets);

}  // namespace ht::data
