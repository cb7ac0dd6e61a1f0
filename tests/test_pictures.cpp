// Pictures from files: pixels that are known, damaged and foreign files, crops and sizes, folders, CIFAR-10 files.
#include <doctest/doctest.h>

#include <cstdio>

#include "data/cifar10.h"
#include "data/image_file.h"
#include "data/pictures.h"
#include "data/resize.h"
#include "tests/data_helpers.h"
#ifdef HT_JPEG
#include <jpeglib.h>
#endif
#ifdef HT_PNG
#include <png.h>
#endif

using namespace ht;
using namespace ht::data;
namespace fs = std::filesystem;

namespace {
void write(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

Tensor image_of(std::initializer_list<double> values, int64_t h, int64_t w) {
  return Tensor::from(values, {h, w, 3}, DType::u8);
}

std::string ppm_of(const Tensor& image) {
  return str("P6\n", image.dim(1), ' ', image.dim(0), "\n255\n") +
         std::string(static_cast<const char*>(image.data()), image.bytes());
}

Tensor image_number(int64_t i, int64_t h = 32, int64_t w = 32) {
  return random_set(1, h, w, static_cast<uint64_t>(i)).images.view({h, w, 3});
}

// What read_image makes of these bytes.
std::string error_for(const std::string& bytes) {
  const TempFolder folder;
  write(folder.path / "x.png", bytes);
  const std::string error = error_of([&] { read_image(folder.path / "x.png"); });
  CHECK_MESSAGE((error == "no error" || contains(error, str("image: '", (folder.path / "x.png").string(), "'"))),
                error);
  return error;
}

// Every beginning of the file, and the file with any one byte changed: an image, or an Error that names the file.
int count_errors_of_damaged(const std::string& bytes) {
  int errors = 0;
  for (size_t cut = 0; cut < bytes.size(); ++cut) errors += error_for(bytes.substr(0, cut)) != "no error";
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x55);
    error_for(changed);
  }
  return errors;
}
}  // namespace

TEST_CASE("PPM: pixels, comments, and what is wrong with it") {
  const TempFolder folder;
  const Tensor image = image_of({255, 0, 0, 1, 2, 3, 10, 20, 30, 35, 32, 9, 0, 0, 0, 7, 8, 9}, 2, 3);
  write(folder.path / "a", ppm_of(image));  // told by its bytes, not by its name
  CHECK(same_bytes(read_image(folder.path / "a"), image));
  write(folder.path / "b.png", "P6 # three\n# by two\n3\t2 #\n255 " + ppm_of(image).substr(11));
  CHECK(same_bytes(read_image(folder.path / "b.png"), image));

  const std::string whole = ppm_of(image);
  for (const auto& [bytes, fact] : std::initializer_list<std::pair<std::string, std::string>>{
           {whole.substr(0, whole.size() - 1), "the PPM has 17 bytes of pixels, not 18 as its 3x2 needs"},
           {whole + "x", "has 19 bytes of pixels"},
           {"P6", "header has no width"},
           {"P6 3 #", "header has no height"},
           {"P6 3 -2 255 ", "header has no height"},
           {"P6 99999999999 1 255 ", "header has no width"},
           {"P6 3 2 65535 ", "largest value is 65535; only 255 is read"},
           {"P6 4000000000 4000000000 255 ", "is 4000000000x4000000000; a picture may have 1 to 67108864 pixels"},
           {"P6 0 1 255 ", "is 0x1; a picture may have 1 to"},
           {"", "is not a PNG, JPEG or binary PPM (P6): it is empty"},
           {"P3 1 1 255 1 2 3", "is not a PNG, JPEG or binary PPM (P6): it begins otherwise"}})
    CHECK_MESSAGE(contains(error_for(bytes), fact), error_for(bytes));
  CHECK(contains(error_of([&] { read_image(folder.path / "no"); }), "cannot be read: no such file"));
  CHECK(contains(error_of([&] { read_image(folder.path); }), "not a regular file"));
  CHECK(count_errors_of_damaged(whole) == static_cast<int>(whole.size()));
}

#ifdef HT_PNG
TEST_CASE("PNG: written and read to the same pixels; grey, palette and transparency; damaged ones") {
  const TempFolder folder;
  const Tensor image = image_number(1, 5, 7);
  write(folder.path / "a", encode_png(image));
  CHECK(same_bytes(read_image(folder.path / "a"), image));
  CHECK(error_of([] {
          encode_png(Tensor::zeros({2, 2, 3}));
        }) == "encode_png: needs u8 [h, w, 3] (image [2,2,3] f32 cpu)");

  const auto convert = [&](png_uint_32 format, std::vector<uint8_t> pixels) {  // one row of two
    png_image png{};
    png.version = PNG_IMAGE_VERSION;
    png.width = 2, png.height = 1, png.format = format;
    REQUIRE(png_image_write_to_file(&png, (folder.path / "b").c_str(), 0, pixels.data(), 0, nullptr));
    return read_image(folder.path / "b").to_vector();
  };
  CHECK(convert(PNG_FORMAT_GRAY, {7, 200}) == std::vector<double>{7, 7, 7, 200, 200, 200});
  CHECK(convert(PNG_FORMAT_RGBA, {9, 8, 7, 255, 9, 8, 7, 0}) == std::vector<double>{9, 8, 7, 255, 255, 255});

  const std::string whole = encode_png(image_number(2, 3, 3));
  CHECK(count_errors_of_damaged(whole) >= static_cast<int>(whole.size()) - 16);  // its last chunk holds nothing
  CHECK(contains(error_for(whole.substr(0, whole.size() / 2)), "the PNG is damaged or cut off: "));
  std::string huge = encode_png(image_number(2, 3, 3));
  huge[18] = huge[22] = 1;  // 65539 x 65539, and the checksum wrong
  CHECK(contains(error_for(huge), "image: "));
}
#endif

#ifdef HT_JPEG
namespace {
std::string encode_jpeg(const std::vector<uint8_t>& pixels, int h, int w, J_COLOR_SPACE space, int channels) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(w), info.image_height = static_cast<JDIMENSION>(h);
  info.input_components = channels, info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < h; ++y) {
    auto* row = const_cast<uint8_t*>(pixels.data() + y * w * channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<char*>(buffer), size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}
}  // namespace

TEST_CASE("JPEG: colours within its loss; grey; a colour space without colours; damaged ones") {
  const TempFolder folder;
  std::vector<uint8_t> halves;  // 16x16, left red, right blue: no colour changes within a block
  for (int i = 0; i < 256; ++i) {
    const bool left = i % 16 < 8;
    for (const int v : {left ? 200 : 20, 30, left ? 10 : 220}) halves.push_back(static_cast<uint8_t>(v));
  }
  write(folder.path / "a", encode_jpeg(halves, 16, 16, JCS_RGB, 3));
  const Tensor image = read_image(folder.path / "a");
  REQUIRE(image.shape() == Shape{16, 16, 3});
  for (const int64_t x : {0, 15})
    for (int64_t c = 0; c < 3; ++c) {
      const int64_t i = (7 * 16 + x) * 3 + c;
      CHECK(std::abs(image.at(i) - halves[static_cast<size_t>(i)]) <= 3);
    }
  write(folder.path / "a", encode_jpeg(std::vector<uint8_t>(15, 77), 3, 5, JCS_GRAYSCALE, 1));
  for (const double v : read_image(folder.path / "a").to_vector()) CHECK(std::abs(v - 77) <= 1);
  CHECK(contains(error_for(encode_jpeg(std::vector<uint8_t>(16, 77), 2, 2, JCS_CMYK, 4)),
                 "the JPEG is damaged or cut off: Unsupported color conversion request"));

  const std::string whole = encode_jpeg(std::vector<uint8_t>(halves.begin(), halves.begin() + 27), 3, 3, JCS_RGB, 3);
  CHECK(count_errors_of_damaged(whole) == static_cast<int>(whole.size()));
  CHECK(contains(error_for(whole.substr(0, whole.size() - 10)), "the JPEG is damaged or cut off: "));
}
#endif

TEST_CASE("a build without a library says which one it lacks") {
#ifndef HT_PNG
  CHECK(contains(error_for("\x89PNG\r\n\x1a\n"), "is a PNG: this Halftone was built without libpng; install it"));
#endif
#ifndef HT_JPEG
  CHECK(contains(error_for("\xff\xd8\xff"), "is a JPEG: this Halftone was built without libjpeg; install it"));
#endif
}

TEST_CASE("the square in the middle; means of areas when shrinking, lines between pixels when growing") {
  const Tensor wide = image_of({1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5}, 1, 5);
  CHECK(center_crop(wide).to_vector() == std::vector<double>{3, 3, 3});
  CHECK(center_crop(wide.view({5, 1, 3})).to_vector() == std::vector<double>{3, 3, 3});
  const Tensor square = image_number(1, 6, 6);
  CHECK(same_bytes(center_crop(square), square));
  CHECK(same_bytes(resize(square, 6, 6), square));

  const auto reds = [](const Tensor& t) {
    std::vector<double> out;
    for (int64_t i = 0; i < t.numel(); i += 3) out.push_back(t.at(i));
    return out;
  };
  const Tensor three = image_of({0, 9, 9, 90, 9, 9, 180, 9, 9}, 1, 3), two = image_of({0, 9, 9, 100, 9, 9}, 1, 2);
  CHECK(reds(resize(three, 1, 2)) == std::vector<double>{30, 150});  // (0 + 90 / 2) / 1.5
  CHECK(reds(resize(three, 1, 1)) == std::vector<double>{90});
  CHECK(reds(resize(two, 1, 4)) == std::vector<double>{0, 25, 75, 100});
  CHECK(reds(resize(two, 2, 1)) == std::vector<double>{50, 50});
  CHECK(resize(two, 1, 4).at(1) == 9);
  const Tensor four = image_of({0, 0, 0, 10, 0, 0, 20, 0, 0, 31, 0, 0}, 2, 2);
  CHECK(reds(resize(four, 1, 1)) == std::vector<double>{15});  // 15.25
  CHECK(error_of([] {
          resize(Tensor::zeros({2, 2}, DType::u8), 1, 1);
        }) == "resize: needs u8 [h, w, 3] (image [2,2] u8 cpu)");
  CHECK(contains(error_of([&] { resize(two, 0, 1); }), "resize: to 1x0"));
}

TEST_CASE("a folder: its pictures by name, of any size, and what was left out; a bad one is named") {
  const TempFolder folder;
  write(folder.path / "b.PPM", ppm_of(image_number(1)));
  write(folder.path / "a.png", ppm_of(image_number(2, 40, 70)));
  write(folder.path / "notes.txt", "x");
  fs::create_directories(folder.path / "old.png");
  const Pictures got = read_pictures(folder.path, 32);
  CHECK(got.names == std::vector<std::string>{"a.png", "b.PPM"});
  CHECK(!got.labelled);
  CHECK(got.left_out == "2 other entries (notes.txt, old.png)");
  CHECK(same_bytes(got.set.images.rows(1, 2).view({32, 32, 3}), image_number(1)));
  CHECK(same_bytes(got.set.images.rows(0, 1).view({32, 32, 3}), resize(center_crop(image_number(2, 40, 70)), 32, 32)));
  const Pictures one = read_pictures(folder.path / "b.PPM", 16);
  CHECK(one.names == std::vector<std::string>{"b.PPM"});
  CHECK(one.set.images.shape() == Shape{1, 16, 16, 3});

  write(folder.path / "aa.jpg", "P6 3 3 255 no");
  CHECK(contains(error_of([&] { read_pictures(folder.path, 32); }),
                 str("image: '", (folder.path / "aa.jpg").string(), "': the PPM has 2 bytes")));
  const std::string sub = (folder.path / "old.png").string();
  CHECK(error_of([&] { read_pictures(sub, 32); }) == str("images: '", sub,
                                                         "' has no .png, .jpg, .jpeg or .ppm file and no "
                                                         "test_batch.bin; it is empty"));
  CHECK(error_of([&] { read_pictures(folder.path / "no", 32); }) ==
        str("images: '", (folder.path / "no").string(), "': no such file or folder"));
}

TEST_CASE("CIFAR-10 files: labels, names, the test set of a folder, another size") {
  const TempFolder folder;
  const ImageDataset test = random_set(7);
  write_cifar10(folder.path / "top/cifar-10-batches-bin", {random_set(10), test});
  const fs::path inner = folder.path / "top/cifar-10-batches-bin";
  for (const fs::path& path : {folder.path / "top", inner, inner / "test_batch.bin"}) {
    const Pictures got = read_pictures(path, 32);
    CHECK(got.labelled);
    CHECK(same_bytes(got.set.images, test.images));
    CHECK(same_bytes(got.set.labels, test.labels));
    CHECK(got.set.class_names == test.class_names);
    CHECK(got.names.back() == "test_batch.bin:6");
  }
  CHECK(read_pictures(inner / "data_batch_1.bin", 32).set.size() == 2);
  CHECK(read_pictures(inner, 64).set.images.shape() == Shape{7, 64, 64, 3});
  fs::copy_file(inner / "test_batch.bin", folder.path / "some.bin");
  CHECK(read_pictures(folder.path / "some.bin", 32).set.class_names.empty());
  fs::resize_file(folder.path / "some.bin", 5000);
  CHECK(contains(error_of([&] { read_pictures(folder.path / "some.bin", 32); }), "has 5000 bytes: 1 records"));
}
