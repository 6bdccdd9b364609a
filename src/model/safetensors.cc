#include "model/safetensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "model/json_fields.h"

namespace deltaring {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxHeader = 100'000'000;  // bytes; the format's own limit
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

using TensorMap = std::map<std::string, TensorRef, std::less<>>;

struct Element {
  const char* name;
  int64_t bits;
  std::optional<DType> dtype;  // empty: known to the format, not to us
};

constexpr Element kElements[] = {
    {"F32", 32, DType::f32}, {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16}, {"F8_E4M3", 8, DType::f8_e4m3},
    {"F64", 64, {}},         {"C64", 64, {}},
    {"I64", 64, {}},         {"U64", 64, {}},
    {"I32", 32, {}},         {"U32", 32, {}},
    {"I16", 16, {}},         {"U16", 16, {}},
    {"I8", 8, {}},           {"U8", 8, {}},
    {"BOOL", 8, {}},         {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},      {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},      {"F4", 4, {}},
};

// Where the data of a tensor lies, relative to the data section.
struct Extent {
  uint64_t begin, end;
  std::string_view name;
};

const Element& parse_element(const JsonFields& entry) {
  const std::string name = entry.text_or("dtype", "missing");
  for (const Element& element : kElements) {
    if (name == element.name) return element;
  }
  fail(ErrorKind::corrupt, "{}: dtype is {}, which the format does not have; usable: F32, BF16, F16, F8_E4M3",
       entry.where(), shown(name));
}

// Bytes of a tensor of that shape, rejecting what overflows or ends inside a byte.
uint64_t bytes_of(const JsonFields& entry, const Element& element, const std::vector<int64_t>& shape) {
  int64_t bits = element.bits;
  bool overflow = false;
  for (int64_t dim : shape) overflow |= __builtin_mul_overflow(bits, dim, &bits);
  if (overflow || bits % 8 != 0) {
    fail(ErrorKind::corrupt, "{}: shape {} of {} has no size in whole bytes below 2^60", entry.where(),
         shown_json(*entry.find("shape")), element.name);
  }
  return static_cast<uint64_t>(bits) / 8;
}

const json& require_array(const JsonFields& entry, const char* key) {
  const json* value = entry.find(key);
  if (!value || !value->is_array()) {
    fail(ErrorKind::corrupt, "{}: {} is {}, expected a list", entry.where(), key,
         value ? shown_json(*value) : "missing");
  }
  return *value;
}

TensorRef parse_tensor(const JsonFields& entry, std::span<const std::byte> data, Extent& extent) {
  const Element& element = parse_element(entry);
  TensorRef tensor;
  require_array(entry, "shape");
  tensor.shape = entry.integers("shape", 0, INT64_MAX);
  tensor.bytes = bytes_of(entry, element, tensor.shape);
  if (require_array(entry, "data_offsets").size() != 2) {
    fail(ErrorKind::corrupt, "{}: data_offsets is {}, expected [begin, end]", entry.where(),
         shown_json(*entry.find("data_offsets")));
  }
  const std::vector<int64_t> offsets = entry.integers("data_offsets", 0, INT64_MAX);
  const auto begin = static_cast<uint64_t>(offsets[0]), end = static_cast<uint64_t>(offsets[1]);
  if (begin > end || end > data.size()) {
    fail(ErrorKind::corrupt, "{}: data_offsets [{}, {}] leave the {} bytes of data: the file is damaged or truncated",
         entry.where(), begin, end, data.size());
  }
  if (end - begin != tensor.bytes) {
    fail(ErrorKind::corrupt, "{}: data_offsets [{}, {}] hold {} bytes, but shape {} of {} takes {}", entry.where(),
         begin, end, end - begin, shown_json(*entry.find("shape")), element.name, tensor.bytes);
  }
  tensor.data = data.data() + begin;
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(std::max<int64_t>(element.bits / 8, 1)) != 0) {
    fail(ErrorKind::corrupt, "{}: the data of {} is not aligned to its elements; pad the header to a multiple of 8",
         entry.where(), element.name);
  }
  if (element.dtype) {
    tensor.dtype = *element.dtype;
  } else {
    tensor.foreign_dtype = element.name;
  }
  extent.begin = begin;
  extent.end = end;
  return tensor;
}

// The tensors must tile [0, size) of the data section.
void check_extents(std::vector<Extent> extents, uint64_t size, const std::string& where) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  Extent last{0, 0, "the header"};
  for (const Extent& e : extents) {
    if (e.begin < last.end) {
      fail(ErrorKind::corrupt, "{}: tensors {} and {} overlap: data_offsets [{}, {}] and [{}, {}]", where,
           shown(last.name), shown(e.name), last.begin, last.end, e.begin, e.end);
    }
    if (e.begin > last.end) {
      fail(ErrorKind::corrupt, "{}: bytes [{}, {}) of the data, before {}, belong to no tensor", where, last.end,
           e.begin, shown(e.name));
    }
    last = e;
  }
  if (last.end != size) {
    fail(ErrorKind::corrupt, "{}: bytes [{}, {}) at the end of the data belong to no tensor", where, last.end, size);
  }
}

TensorMap parse_file(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < 8) {
    fail(ErrorKind::corrupt, "{}: {} bytes are too few for the 8-byte header length: truncated, or not safetensors",
         where, file.size());
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | std::to_integer<uint64_t>(file[static_cast<size_t>(i)]);
  if (length > file.size() - 8 || length > kMaxHeader) {
    fail(ErrorKind::corrupt,
         "{}: a header of {} bytes does not fit the file of {} bytes (limit {}): truncated, or not "
         "safetensors",
         where, length, file.size(), kMaxHeader);
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  const json header = parse_json({text, length}, where + ": header");
  if (!header.is_object()) fail(ErrorKind::corrupt, "{}: the header is {}, not an object", where, shown_json(header));
  const auto data = file.subspan(8 + length);
  TensorMap tensors;
  std::vector<Extent> extents;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const JsonFields entry(value, where + ": tensor " + shown(name));
    Extent extent{};
    const auto it = tensors.emplace(name, parse_tensor(entry, data, extent)).first;
    extent.name = it->first;
    extents.push_back(extent);
  }
  check_extents(std::move(extents), data.size(), where);
  return tensors;
}

// weight_map of the index: tensor name -> file name of its shard, inside the folder.
std::map<std::string, std::string> parse_index(const fs::path& path) {
  const json document = parse_json(read_text(path), path.string());
  const JsonFields index(document, path.string());
  const json* entries = index.find("weight_map");
  if (!entries || !entries->is_object() || entries->empty()) {
    fail(ErrorKind::corrupt, "{}: weight_map is {}, expected an object of tensor names and shard names", path.string(),
         entries ? shown_json(*entries) : "missing");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, value] : entries->items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    const bool plain = shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (shard.empty() || shard == "." || shard == ".." || !plain) {
      fail(ErrorKind::corrupt, "{}: tensor {} is put into {}, expected the name of a file in this folder",
           path.string(), shown(name), shown_json(value));
    }
    shard_of.emplace(name, shard);
  }
  return shard_of;
}

// Every tensor must be in the shard where the index puts it, and in the index.
void check_index(const std::map<std::string, std::string>& shard_of,
                 const std::map<std::string_view, std::string_view>& found_in, const std::string& where) {
  for (const auto& [name, shard] : shard_of) {
    const auto it = found_in.find(name);
    if (it == found_in.end() || it->second != shard) {
      fail(ErrorKind::corrupt, "{}: tensor {} is not in {}, where the index puts it", where, shown(name), shown(shard));
    }
  }
  for (const auto& [name, shard] : found_in) {
    if (!shard_of.contains(std::string(name))) {
      fail(ErrorKind::corrupt, "{}: tensor {} of {} is not in the index", where, shown(name), shown(shard));
    }
  }
}

}  // namespace

SafeTensors SafeTensors::from_bytes(std::span<const std::byte> file, const std::string& where) {
  SafeTensors result;
  result.tensors_ = parse_file(file, where);
  return result;
}

SafeTensors SafeTensors::open_file(const fs::path& path) {
  SafeTensors result;
  const MappedFile& file = result.files_.emplace_back(path);
  result.tensors_ = parse_file(file.bytes(), path.string());
  return result;
}

SafeTensors SafeTensors::open(const fs::path& folder) {
  check_model_folder(folder);
  std::error_code ignored;
  if (fs::exists(folder / kSingleFile, ignored)) return open_file(folder / kSingleFile);
  const fs::path index_path = folder / kIndexFile;
  if (!fs::exists(index_path, ignored)) {
    fail(ErrorKind::not_found, "{} holds neither {} nor {}; weights are read from one of them", folder.string(),
         kSingleFile, kIndexFile);
  }
  const auto shard_of = parse_index(index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);

  SafeTensors result;
  std::map<std::string_view, std::string_view> found_in;
  for (const std::string& shard : shards) {
    if (!fs::exists(folder / shard, ignored)) {
      fail(ErrorKind::not_found, "{} names the shard {}, which is missing; the download may be incomplete",
           index_path.string(), shown(shard));
    }
    const MappedFile& file = result.files_.emplace_back(folder / shard);
    for (auto& [name, tensor] : parse_file(file.bytes(), (folder / shard).string())) {
      const auto [it, fresh] = result.tensors_.emplace(name, tensor);
      if (!fresh) {
        fail(ErrorKind::corrupt, "{}: tensor {} is in two shards, {} and {}", index_path.string(), shown(name),
             shown(found_in[it->first]), shown(shard));
      }
      found_in.emplace(it->first, shard);
    }
  }
  check_index(shard_of, found_in, index_path.string());
  return result;
}

const TensorRef* SafeTensors::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> list;
  list.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) list.push_back(name);
  return list;
}

}  // namespace deltaring
