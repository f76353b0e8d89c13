#include "ebb/formats/hdf5/description.h"

#include <algorithm>
#include <concepts>
#include <iterator>
#include <type_traits>

namespace ebb::formats::hdf5 {
namespace {

constexpr std::uint64_t kMagic = 0x3152444853464445;  // changes with the records below
constexpr int kMaxNesting = 40;                       // of values

// One list of fields serves both directions: archive(field...) appends to bytes or takes from them.
class Encoder {
 public:
  static constexpr bool kDecodes = false;

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  ByteVector take() { return std::move(out_); }

 private:
  template <typename T>
    requires std::integral<T> || std::is_enum_v<T> || std::same_as<T, double>
  void put(const T& number) {
    if constexpr (std::same_as<T, bool>)
      append_le<std::uint8_t>(out_, number ? 1 : 0);
    else
      append_le(out_, number);
  }
  void put(const std::string& text) {
    append_le<std::uint64_t>(out_, text.size());
    append_text(out_, text);
  }
  void put(const ByteVector& bytes) {
    append_le<std::uint64_t>(out_, bytes.size());
    append_bytes(out_, bytes);
  }
  template <typename T>
  void put(const std::vector<T>& items) {
    append_le<std::uint64_t>(out_, items.size());
    for (const T& item : items) put(item);
  }
  void put(const Shape& numbers) { put(std::vector(numbers.begin(), numbers.end())); }
  template <typename T>
  void put(const std::optional<T>& item) {
    put(item.has_value());
    if (item) put(*item);
  }
  template <typename T>
    requires std::is_class_v<T>
  void put(const T& record) {
    visit(*this, record);
  }

  ByteVector out_;
};

class Decoder {
 public:
  static constexpr bool kDecodes = true;

  explicit Decoder(ByteView bytes) : in_(bytes) {}

  template <typename... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }
  bool whole() const { return !failed_ && in_.left() == 0; }
  std::size_t position() const { return in_.position(); }

 private:
  template <typename T>
    requires std::integral<T> || std::is_enum_v<T> || std::same_as<T, double>
  void get(T& number) {
    if constexpr (std::same_as<T, bool>) {
      std::uint8_t byte = 0;
      get(byte);
      number = byte != 0;
    } else {
      const std::optional<T> taken = failed_ ? std::nullopt : in_.number<T>();
      failed_ = !taken;
      number = taken.value_or(T{});
    }
  }
  void get(std::string& text) {
    if (const auto bytes = counted()) text.assign(text_of(*bytes));
  }
  void get(ByteVector& out) {
    if (const auto bytes = counted()) out.assign(bytes->begin(), bytes->end());
  }
  std::optional<ByteView> counted() {
    std::uint64_t count = 0;
    get(count);
    const std::optional<ByteView> bytes = failed_ ? std::nullopt : in_.take(count);
    failed_ = !bytes;
    return bytes;
  }
  template <typename T>
  void get(std::vector<T>& items) {
    std::uint64_t count = 0;
    get(count);
    // An item has a byte at least: a count beyond the bytes left ends the loop, not the memory.
    for (; count > 0 && !failed_; --count) get(items.emplace_back());
  }
  void get(Shape& numbers) {
    std::vector<std::uint64_t> read;
    get(read);
    numbers = Shape(read);
  }
  template <typename T>
  void get(std::optional<T>& item) {
    bool there = false;
    get(there);
    if (there && !failed_) get(item.emplace());
  }
  template <typename T>
    requires std::is_class_v<T>
  void get(T& record) {
    if constexpr (std::same_as<T, Value>) {
      if (++nesting_ > kMaxNesting) failed_ = true;
      if (!failed_) visit(*this, record);
      --nesting_;
    } else {
      visit(*this, record);
    }
  }

  ByteReader in_;
  bool failed_ = false;
  int nesting_ = 0;
};

template <typename T, typename U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

void visit(auto& archive, Is<Value> auto& v) {
  archive(v.kind, v.integer, v.real, v.text, v.raw, v.items);
}
void visit(auto& archive, Is<ElementType> auto& t) {
  archive(t.kind, t.size, t.big_endian, t.is_signed, t.padded, t.sign_at, t.exponent_at,
          t.exponent_bits, t.mantissa_at, t.mantissa_bits, t.bias, t.words);
}
void visit(auto& archive, Is<Attribute> auto& a) { archive(a.name, a.value); }
void visit(auto& archive, Is<Filter> auto& f) { archive(f.id, f.settings); }
void visit(auto& archive, Is<StoredChunk> auto& c) { archive(c.address, c.bytes, c.skipped); }
void visit(auto& archive, Is<Selection> auto& s) {
  archive(s.kind, s.start, s.stride, s.count, s.block);
}
void visit(auto& archive, Is<Mapping> auto& m) { archive(m.file, m.dataset, m.source, m.target); }
void visit(auto& archive, Is<ExternalFile> auto& e) { archive(e.name, e.bytes); }
void visit(auto& archive, Is<Dataset> auto& d) {
  archive(d.path, d.type, d.has_space, d.shape, d.layout, d.address, d.stored, d.content, d.chunk,
          d.chunks_stored, d.filters, d.chunks, d.mappings, d.external, d.text, d.attributes);
}
void visit(auto& archive, Is<Group> auto& g) { archive(g.path, g.attributes); }
void visit(auto& archive, Is<Link> auto& l) { archive(l.kind, l.path, l.target, l.file); }
void visit(auto& archive, Is<Description> auto& d) {
  archive(d.library, d.notes, d.groups, d.datasets, d.links);
}

// Numbers that stand for one of a few: bytes may hold anything.
bool is_known(const Value& value) {
  using enum Value::Kind;
  constexpr Value::Kind kKinds[] = {none,   boolean, integer, big_integer, real,
                                    string, bytes,   list,    object};
  return std::ranges::find(kKinds, value.kind) != std::end(kKinds) &&
         std::ranges::all_of(value.items, [](const Value& item) { return is_known(item); });
}

bool is_known(const std::vector<Attribute>& attributes) {
  return std::ranges::all_of(attributes, [](const auto& one) { return is_known(one.value); });
}

bool is_known(const Description& description) {
  for (const Group& group : description.groups)
    if (!is_known(group.attributes)) return false;
  for (const Link& link : description.links)
    if (link.kind > Link::Kind::group_again) return false;
  for (const Dataset& dataset : description.datasets) {
    if (dataset.type.kind > ElementType::Kind::other || dataset.layout > Dataset::Layout::mapped ||
        !is_known(dataset.attributes) || (dataset.text && !is_known(*dataset.text)))
      return false;
    for (const Mapping& mapping : dataset.mappings)
      if (mapping.source.kind > Selection::Kind::irregular ||
          mapping.target.kind > Selection::Kind::irregular)
        return false;
  }
  return true;
}

}  // namespace

ByteVector encode(const Description& description) {
  Encoder encoder;
  encoder(kMagic, description);
  return encoder.take();
}

Result<Description> decode(ByteView bytes) {
  Decoder decoder(bytes);
  Description description;
  std::uint64_t magic = 0;
  decoder(magic, description);
  if (magic == kMagic && decoder.whole() && is_known(description)) return description;
  return Error{Code::corrupt,
               compose("what {} said makes no sense at byte {} of {}", kReaderProgram,
                       decoder.position(), bytes.size()),
               magic == kMagic ? "" : "is it of the same build? ./dev build"};
}

}  // namespace ebb::formats::hdf5
