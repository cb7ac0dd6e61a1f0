// What a person points at to have it classified: picture files, a folder of them, or labelled CIFAR-10 files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace ht::data {

struct Pictures {
  ImageDataset set;                // images u8 [n, side, side, 3]; labels are 0 unless `labelled`
  std::vector<std::string> names;  // "cat.png", "test_batch.bin:17"; one an image
  bool labelled = false;           // then class_names are those of batches.meta.txt beside the file; empty without it
  std::string left_out;            // what else is in the folder: "2 other entries (notes.txt, old)"; empty: nothing
};

// Reads `path`:
//   - a CIFAR-10 binary file (.bin), or a folder (or its cifar-10-batches-bin) with test_batch.bin, of which that one;
//   - a picture (data/image_file.h), whatever its name;
//   - a folder: its .png, .jpg, .jpeg and .ppm files, by name, not those of folders in it.
// Pictures of another size are cropped to the square in their middle, then resized (data/resize.h). Throws Error naming
// the file when any of these cannot be read, and when there is none.
Pictures read_pictures(const std::filesystem::path& path, int64_t side);

}  // namespace ht::data
