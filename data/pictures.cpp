#include "data/pictures.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "data/cifar10.h"
#include "data/image_file.h"
#include "data/resize.h"

namespace ht::data {

namespace fs = std::filesystem;

namespace {
std::string extension_of(const fs::path& file) {
  std::string text = file.extension().string();
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_picture(const fs::path& file) {
  const std::string extension = extension_of(file);
  std::error_code error;
  return (extension == ".png" || extension == ".jpg" || extension == ".jpeg" || extension == ".ppm") &&
         !fs::is_directory(file, error);
}

Tensor fit(const Tensor& image, int64_t side) {
  const Tensor square = center_crop(image);
  return square.dim(0) == side ? square : resize(square, side, side);
}

// image_of(i) for n images, each made to fit.
template <class F>
Tensor stack(int64_t n, int64_t side, F&& image_of) {
  const Tensor all = Tensor::empty({n, side, side, 3}, DType::u8);
  for (int64_t i = 0; i < n; ++i) all.rows(i, i + 1).copy_(fit(image_of(i), side).view({1, side, side, 3}));
  return all;
}

Pictures read_labelled(const fs::path& file, int64_t side) {
  const fs::path meta = file.parent_path() / "batches.meta.txt";
  std::error_code error;
  Pictures out;
  out.labelled = true;
  std::vector<std::string> names(10);  // unknown
  if (fs::exists(meta, error)) names = read_class_names(meta);
  out.set = read_cifar10_file(file, names);
  if (names.front().empty()) out.set.class_names.clear();
  const Tensor& images = out.set.images;
  const int64_t n = out.set.size(), h = images.dim(1), w = images.dim(2);
  if (side != h) out.set.images = stack(n, side, [&](int64_t i) { return images.rows(i, i + 1).view({h, w, 3}); });
  for (int64_t i = 0; i < n; ++i) out.names.push_back(str(file.filename().string(), ':', i));
  return out;
}

Pictures read_files(const std::vector<fs::path>& files, std::string source, int64_t side) {
  const auto n = static_cast<int64_t>(files.size());
  Pictures out;
  out.set.images = stack(n, side, [&](int64_t i) { return read_image(files[static_cast<size_t>(i)]); });
  out.set.labels = Tensor::zeros({n}, DType::i32);
  out.set.source = std::move(source);
  for (const fs::path& file : files) out.names.push_back(file.filename().string());
  return out;
}

// "2 other entries (notes.txt, old)"
std::string list_others(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = str(names.size(), names.size() == 1 ? " other entry (" : " other entries (");
  for (size_t i = 0; i < std::min<size_t>(names.size(), 4); ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > 4 ? ", ...)" : ")");
}

Pictures read_folder(const fs::path& folder, int64_t side) {
  std::error_code error;
  std::vector<fs::path> files;
  std::vector<std::string> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (is_picture(entry.path()))
      files.push_back(entry.path());
    else
      others.push_back(entry.path().filename().string());
  }
  check(!error, "images: '", folder.string(), "' cannot be read: ", error.message());
  std::sort(files.begin(), files.end());
  std::sort(others.begin(), others.end());
  check(!files.empty(), "images: '", folder.string(), "' has no .png, .jpg, .jpeg or .ppm file and no test_batch.bin",
        others.empty() ? "; it is empty" : str(", but ", list_others(others)));
  Pictures out = read_files(files, folder.string(), side);
  out.left_out = list_others(others);
  return out;
}
}  // namespace

Pictures read_pictures(const fs::path& path, int64_t side) {
  std::error_code error;
  check(fs::exists(path, error), "images: '", path.string(), "': ", error ? error.message() : "no such file or folder");
  if (!fs::is_directory(path, error))
    return extension_of(path) == ".bin" ? read_labelled(path, side) : read_files({path}, path.string(), side);
  for (const fs::path& folder : {path, path / "cifar-10-batches-bin"})
    if (const fs::path file = folder / "test_batch.bin"; fs::exists(file, error)) return read_labelled(file, side);
  return read_folder(path, side);
}

}  // namespace ht::data
