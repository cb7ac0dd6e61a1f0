#include "core/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/replace_file.h"

namespace ht {

namespace {
using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian numbers");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr const char* kMetadata = "__metadata__";

constexpr std::pair<DType, const char*> kDTypes[] = {{DType::f64, "F64"},   {DType::f32, "F32"}, {DType::f16, "F16"},
                                                     {DType::bf16, "BF16"}, {DType::u8, "U8"},   {DType::i32, "I32"},
                                                     {DType::i64, "I64"}};

const char* file_name_of(DType t) {
  return std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& d) { return d.first == t; })->second;
}

std::string cause(int error) { return std::strerror(error); }

// --- writing ---------------------------------------------------------------------------------------------------------

using Bytes = std::span<const std::byte>;
}  // namespace

void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors, const Metadata& metadata) {
  std::vector<std::pair<std::string, Tensor>> order;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined(), "safetensors: tensor '", name, "' is undefined; leave it out (file '", path, "')");
    check(name != kMetadata, "safetensors: no tensor may be named '", kMetadata, "', the format has it for itself");
    order.emplace_back(name, tensor.to(Device::cpu()));
  }
  // The widest elements first: so each tensor is aligned to its own.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second.dtype()) > size_of(b.second.dtype()); });

  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::vector<Bytes> parts(2);
  size_t end = 0;
  for (const auto& [name, tensor] : order) {
    const size_t begin = std::exchange(end, end + tensor.bytes());
    const std::span<const int64_t> sizes = tensor.shape().sizes();
    header[name] = {{"dtype", file_name_of(tensor.dtype())},
                    {"shape", std::vector<int64_t>(sizes.begin(), sizes.end())},
                    {"data_offsets", {begin, end}}};
    parts.emplace_back(static_cast<const std::byte*>(tensor.data()), tensor.bytes());
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail("safetensors: a name or a metadata text is not UTF-8 (file '", path, "')");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  check(text.size() <= kMaxHeader, "safetensors: the header of '", path, "' would take ", text.size(),
        " bytes; the format's readers allow ", kMaxHeader);
  const uint64_t length = text.size();
  parts[0] = std::as_bytes(std::span(&length, 1));
  parts[1] = std::as_bytes(std::span(text));
  if (const auto failure = replace_file(path, parts))
    fail("safetensors: cannot ", failure->what, " '", path, "': ", failure->cause, "; ", failure->remedy,
         ". Nothing was written, a file of that name is as it was");
}

// --- reading ---------------------------------------------------------------------------------------------------------

namespace {
// Takes the parser's events one by one and accepts only those that the format allows: no tree is built, so that a
// header cannot take much more memory than its own size, however deep it nests.
class HeaderReader : public json::json_sax_t {
 public:
  HeaderReader(const std::string& path, Metadata& metadata, std::map<std::string, SafeTensors::Entry>& entries)
      : path_(path), metadata_(metadata), entries_(entries) {}

  bool start_object(std::size_t) override {
    if (where_ == Where::begin) return go(Where::file);
    if (where_ == Where::name) return name_ == kMetadata ? go(Where::metadata) : go(Where::entry);
    return wrong("an object");
  }

  bool key(std::string& key) override {
    if (where_ == Where::file) {
      name_ = key;
      const bool fresh = key == kMetadata ? !std::exchange(has_metadata_, true) : entries_.try_emplace(key).second;
      check(fresh, *this, "the name stands there twice");
      seen_ = 0;
      return go(Where::name);
    }
    if (where_ == Where::metadata) {
      check(!metadata_.contains(key), *this, "the key '", key, "' stands there twice");
      text_ = &metadata_[key];
      return go(Where::metadata_text);
    }
    // In an entry; there are no other objects.
    const unsigned bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    check(bit != 0, *this, "the field '", key, "' is unknown; dtype, shape and data_offsets are all there may be");
    check(!(seen_ & bit), *this, "the field '", key, "' stands there twice");
    seen_ |= bit;
    numbers_.clear();
    return go(bit == 1 ? Where::dtype : bit == 2 ? Where::shape : Where::offsets);
  }

  bool string(std::string& value) override {
    if (where_ == Where::metadata_text) {
      *text_ = value;
      return go(Where::metadata);
    }
    if (where_ != Where::dtype) return wrong("a text");
    const auto* found =
        std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& d) { return value == d.second; });
    check(found != std::end(kDTypes), *this, "dtype '", value,
          "' is not one of Halftone's; convert it to F64, F32, F16, BF16, U8, I32 or I64 first");
    entries_[name_].spec.dtype = found->first;
    return go(Where::entry);
  }

  bool start_array(std::size_t) override {
    if (where_ == Where::shape) return go(Where::shape_numbers);
    if (where_ == Where::offsets) return go(Where::offset_numbers);
    return wrong("an array");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::offset_numbers) {
      check(numbers_.size() < 2, *this, "data_offsets has more than its two numbers");
    } else if (where_ == Where::shape_numbers) {
      check(numbers_.size() < Shape::kMaxRank, *this, "the rank is above the limit of ", Shape::kMaxRank);
      check(value <= INT64_MAX, *this, "the size ", value, " does not fit 63 bits");
    } else {
      return wrong("a number");
    }
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    SafeTensors::Entry& entry = entries_[name_];
    if (where_ == Where::shape_numbers) {
      const std::vector<int64_t> sizes(numbers_.begin(), numbers_.end());
      try {
        entry.spec.shape = Shape(std::span<const int64_t>(sizes));
      } catch (const Error& e) {
        fail(*this, e.what());
      }
    } else {
      check(numbers_.size() == 2, *this, "data_offsets has ", numbers_.size(), " numbers; it needs [begin, end]");
      entry.begin = numbers_[0];
      entry.end = numbers_[1];
    }
    return go(Where::entry);
  }

  bool end_object() override {
    if (where_ == Where::file) return go(Where::end);
    if (where_ == Where::entry)
      check(seen_ == 7, *this, "lacks its ", !(seen_ & 1) ? "dtype" : !(seen_ & 2) ? "shape" : "data_offsets");
    return go(Where::file);
  }

  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("a boolean"); }
  bool number_integer(number_integer_t) override { return wrong("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return wrong("a number that is no 64-bit integer"); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    fail("safetensors: '", path_, "': the header is not valid JSON at its byte ", at, "; the file is damaged");
  }

 private:
  enum class Where : uint8_t {
    begin,
    file,
    name,
    metadata,
    metadata_text,
    entry,
    dtype,
    shape,
    shape_numbers,
    offsets,
    offset_numbers,
    end
  };

  bool go(Where where) {
    where_ = where;
    return true;
  }
  [[noreturn]] bool wrong(const char* found) const { fail(*this, "has ", found, " where the format has none"); }
  // How each error begins.
  friend std::ostream& operator<<(std::ostream& out, const HeaderReader& r) {
    out << "safetensors: '" << r.path_ << "': ";
    if (r.where_ == Where::begin || (r.where_ == Where::file && r.name_.empty())) return out << "the header ";
    return out << "tensor '" << r.name_ << "': ";
  }

  const std::string& path_;
  Metadata& metadata_;
  std::map<std::string, SafeTensors::Entry>& entries_;
  Where where_ = Where::begin;
  std::string name_;             // of the entry
  std::string* text_ = nullptr;  // the metadata's value to come
  bool has_metadata_ = false;
  unsigned seen_ = 0;  // fields of the entry: dtype 1, shape 2, data_offsets 4
  std::vector<uint64_t> numbers_;
};
}  // namespace

SafeTensors::SafeTensors(const std::string& path) : path_(path) {
  const File file(path, O_RDONLY | O_NONBLOCK);  // a pipe would wait for its writer
  check(file.is_open(), "safetensors: cannot open '", path, "': ", cause(errno));
  struct stat info {};
  check(::fstat(file.fd(), &info) == 0, "safetensors: cannot open '", path, "': ", cause(errno));
  check(S_ISREG(info.st_mode), "safetensors: '", path, "' is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  check(size_ >= kLengthBytes + 2, "safetensors: '", path, "' has ", size_,
        " bytes, too few for a header; it is cut short or of another format");
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  check(map != MAP_FAILED, "safetensors: cannot map '", path, "': ", cause(errno));
  map_ = static_cast<std::byte*>(map);
  try {
    uint64_t length = 0;
    std::memcpy(&length, map_, kLengthBytes);
    check(length <= kMaxHeader, "safetensors: '", path, "' says that its header has ", length,
          " bytes, above the limit of ", kMaxHeader, "; it is damaged or of another format");
    check(length <= size_ - kLengthBytes, "safetensors: '", path, "' says that its header has ", length,
          " bytes, but the file ends after ", size_ - kLengthBytes, "; it is cut short or of another format");
    data_begin_ = kLengthBytes + length;
    const char* header = reinterpret_cast<const char*>(map_) + kLengthBytes;
    check(length > 0 && header[0] == '{', "safetensors: '", path,
          "': the header does not begin with '{'; the file is damaged or of another format");
    const void* nul = std::memchr(header, 0, length);  // which the parser would take for the end
    check(!nul, "safetensors: '", path, "': the header is not valid JSON, it has a byte 0; the file is damaged");
    HeaderReader reader(path_, metadata_, entries_);
    json::sax_parse(header, header + length, &reader);
    check_offsets();
  } catch (...) {
    ::munmap(map_, size_);
    throw;
  }
}

SafeTensors::~SafeTensors() { ::munmap(map_, size_); }

// In order of their bytes, tensors follow each other from the first byte to the last, each as long as its shape says.
void SafeTensors::check_offsets() const {
  std::vector<std::pair<const std::string*, const Entry*>> order;
  for (const auto& [name, entry] : entries_) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  const size_t data_bytes = size_ - data_begin_;
  size_t at = 0;
  for (const auto& [name, entry] : order) {
    const auto tensor = [&, name = name] { return str("safetensors: '", path_, "': tensor '", *name, "': "); };
    check(entry->begin <= entry->end, tensor(), "ends at byte ", entry->end, ", before its begin at ", entry->begin);
    check(entry->end <= data_bytes, tensor(), "ends at byte ", entry->end, ", but the file has ", data_bytes,
          " bytes of data; it is cut short");
    size_t wanted = 0;
    const bool overflow =
        __builtin_mul_overflow(static_cast<size_t>(entry->spec.shape.numel()), size_of(entry->spec.dtype), &wanted);
    check(!overflow && wanted == entry->end - entry->begin, tensor(), "has ", entry->end - entry->begin,
          " bytes, but its shape ", entry->spec.shape, " ", entry->spec.dtype, " needs ",
          overflow ? "more than 64 bits can count" : std::to_string(wanted));
    check(entry->begin == at, tensor(), "begins at byte ", entry->begin,
          entry->begin < at ? ", inside the tensor before it, which ends at " : ", after a hole that begins at ", at);
    at = entry->end;
  }
  check(at == data_bytes, "safetensors: '", path_, "': the tensors end at byte ", at, " of the data, but the file has ",
        data_bytes, "; it is damaged");
}

std::span<const std::byte> SafeTensors::bytes(const std::string& name) const {
  const auto it = entries_.find(name);
  check(it != entries_.end(), "safetensors: '", path_, "' has no tensor '", name, "'");
  return {map_ + data_begin_ + it->second.begin, it->second.end - it->second.begin};
}

Tensor SafeTensors::tensor(const std::string& name) const {
  const std::span<const std::byte> from = bytes(name);
  const Tensor t = Tensor::empty(entries_.at(name).spec, Device::cpu());
  if (!from.empty()) std::memcpy(t.data(), from.data(), from.size());
  return t;
}

std::map<std::string, Tensor> SafeTensors::tensors(const std::string& prefix) const {
  std::map<std::string, Tensor> out;
  for (auto it = entries_.lower_bound(prefix); it != entries_.end() && it->first.starts_with(prefix); ++it)
    out[it->first.substr(prefix.size())] = tensor(it->first);
  return out;
}

}  // namespace ht
