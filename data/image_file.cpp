#include "data/image_file.h"

#include <cctype>
#include <cerrno>
#include <charconv>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <fstream>

#ifdef HT_JPEG
#include <jpeglib.h>
#endif
#ifdef HT_PNG
#include <png.h>
#endif

namespace ht::data {

namespace fs = std::filesystem;

namespace {
using Bytes = std::string;

// "image: 'cat.png'": how every error here begins.
std::string at(const fs::path& file) { return str("image: '", file.string(), "'"); }

Bytes read_whole(const fs::path& file) {
  constexpr uintmax_t kMost = 4 * kMaxPixels;
  std::error_code error;
  check(fs::exists(file, error), at(file), " cannot be read: ", error ? error.message() : "no such file");
  check(fs::is_regular_file(file, error), at(file), " cannot be read: it is not a regular file");
  const uintmax_t size = fs::file_size(file, error);
  check(!error, at(file), " cannot be read: ", error.message());
  check(size <= kMost, at(file), " has ", size, " bytes; a picture may have ", kMost);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  Bytes bytes(size, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(size));
  check(in.good(), at(file), " cannot be read: ", errno ? std::strerror(errno) : "it became shorter");
  return bytes;
}

Tensor new_image(const fs::path& file, int64_t h, int64_t w) {
  check(h > 0 && w > 0 && h <= kMaxPixels / w, at(file), " is ", w, "x", h, "; a picture may have 1 to ", kMaxPixels,
        " pixels");
  return Tensor::empty({h, w, 3}, DType::u8);
}

[[noreturn, maybe_unused]] void lacks(const std::string& what, const char* library, const char* package) {
  fail(what, ": this Halftone was built without ", library, "; install it (Debian: apt-get install ", package,
       ") and build again");
}

#ifdef HT_PNG
struct Png {
  png_image image{};
  Png() { image.version = PNG_IMAGE_VERSION; }
  ~Png() { png_image_free(&image); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;
};

Tensor decode_png(const fs::path& file, const Bytes& bytes) {
  Png png;
  const auto need = [&](int ok) { check(ok, at(file), ": the PNG is damaged or cut off: ", png.image.message); };
  need(png_image_begin_read_from_memory(&png.image, bytes.data(), bytes.size()));
  const Tensor out = new_image(file, png.image.height, png.image.width);
  png.image.format = PNG_FORMAT_RGB;
  const png_color white{255, 255, 255};
  need(png_image_finish_read(&png.image, &white, out.data(), 0, nullptr));
  return out;
}
#else
Tensor decode_png(const fs::path& file, const Bytes&) { lacks(at(file) + " is a PNG", "libpng", "libpng-dev"); }
#endif

#ifdef HT_JPEG
struct Jpeg {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf failed{};
  char message[JMSG_LENGTH_MAX] = "";
  Jpeg() = default;
  ~Jpeg() { jpeg_destroy_decompress(&info); }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;
};

void fail_jpeg(j_common_ptr info) {
  auto* jpeg = static_cast<Jpeg*>(info->client_data);
  info->err->format_message(info, jpeg->message);
  std::longjmp(jpeg->failed, 1);
}

// Damaged data is a warning to libjpeg, which would go on with grey; levels from 0 are chatter.
void refuse_damage(j_common_ptr info, int level) {
  if (level < 0) fail_jpeg(info);
}

// False when the library fails within `step`, which must own nothing: it is left by a jump.
template <class F>
bool attempt(Jpeg& jpeg, F step) {
  if (setjmp(jpeg.failed)) return false;
  step(&jpeg.info);
  return true;
}

Tensor decode_jpeg(const fs::path& file, const Bytes& bytes) {
  Jpeg jpeg;
  jpeg.info.err = jpeg_std_error(&jpeg.errors);
  jpeg.info.client_data = &jpeg;
  jpeg.errors.error_exit = fail_jpeg;
  jpeg.errors.emit_message = refuse_damage;
  const auto need = [&](bool ok) { check(ok, at(file), ": the JPEG is damaged or cut off: ", jpeg.message); };
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  need(attempt(jpeg, [data, size = bytes.size()](j_decompress_ptr info) {
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    info->out_color_space = JCS_RGB;
  }));
  const Tensor out = new_image(file, jpeg.info.image_height, jpeg.info.image_width);
  need(attempt(jpeg, [row = out.data<uint8_t>()](j_decompress_ptr info) mutable {
    jpeg_start_decompress(info);
    while (info->output_scanline < info->output_height) {
      jpeg_read_scanlines(info, &row, 1);
      row += size_t{3} * info->output_width;
    }
    jpeg_finish_decompress(info);
  }));
  return out;
}
#else
Tensor decode_jpeg(const fs::path& file, const Bytes&) { lacks(at(file) + " is a JPEG", "libjpeg", "libjpeg-dev"); }
#endif

// "P6", width, height, largest value, with white space and comments (# to the line's end) between, one white space, and
// 3 bytes a pixel. http://netpbm.sourceforge.net/doc/ppm.html
Tensor decode_ppm(const fs::path& file, const Bytes& bytes) {
  size_t i = 2;
  const auto next_number = [&](const char* what) {
    for (; i < bytes.size() && (std::isspace(static_cast<unsigned char>(bytes[i])) || bytes[i] == '#'); ++i)
      if (bytes[i] == '#') i = std::min(bytes.find('\n', i), bytes.size() - 1);
    uint32_t n = 0;
    const auto [stop, error] = std::from_chars(bytes.data() + i, bytes.data() + bytes.size(), n);
    check(error == std::errc(), at(file), ": the PPM's header has no ", what);
    i = static_cast<size_t>(stop - bytes.data());
    return int64_t{n};
  };
  const int64_t w = next_number("width"), h = next_number("height"), most = next_number("largest value");
  check(most == 255, at(file), ": the PPM's largest value is ", most, "; only 255 is read");
  const Tensor out = new_image(file, h, w);
  const size_t begin = std::min(i + 1, bytes.size());
  check(bytes.size() - begin == out.bytes(), at(file), ": the PPM has ", bytes.size() - begin, " bytes of pixels, not ",
        out.bytes(), " as its ", w, "x", h, " needs");
  std::memcpy(out.data(), bytes.data() + begin, out.bytes());
  return out;
}
}  // namespace

Tensor read_image(const fs::path& file) {
  const Bytes bytes = read_whole(file);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(file, bytes);
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(file, bytes);
  if (bytes.starts_with("P6")) return decode_ppm(file, bytes);
  fail(at(file), " is not a PNG, JPEG or binary PPM (P6): ", bytes.empty() ? "it is empty" : "it begins otherwise");
}

std::string encode_png([[maybe_unused]] const Tensor& image) {
#ifdef HT_PNG
  check(image.dtype() == DType::u8 && image.rank() == 3 && image.dim(2) == 3 && image.numel() > 0,
        "encode_png: needs u8 [h, w, 3] (", Named{"image", image}, ")");
  Png png;
  png.image.height = static_cast<png_uint_32>(image.dim(0));
  png.image.width = static_cast<png_uint_32>(image.dim(1));
  png.image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png.image);
  std::string bytes(size, '\0');
  check(png_image_write_to_memory(&png.image, bytes.data(), &size, 0, image.data(), 0, nullptr),
        "encode_png: ", png.image.message, " (", Named{"image", image}, ")");
  bytes.resize(size);
  return bytes;
#else
  lacks("encode_png", "libpng", "libpng-dev");
#endif
}

}  // namespace ht::data
