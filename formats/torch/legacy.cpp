#include "ebb/formats/torch/legacy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {
namespace {

constexpr std::array<unsigned char, kLegacyMagicBytes> kMagic = {
    0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
constexpr std::int64_t kVersion = 1001;
constexpr std::uint64_t kFirstRead = 64 * KiB;
constexpr std::uint64_t kMaxLegacyPickle = 1 * GiB;

class Reader {
 public:
  explicit Reader(const ByteSource& source) : source_(source) {}

  Result<LegacyStream> run() {
    at_ = kMagic.size();
    EBB_TRY_ASSIGN(const PickleGraph version, pickle("the version"));
    if (!version.is(version.root(), PickleKind::integer) ||
        version.integer(version.root()) != kVersion)
      return refuse(Code::unsupported, source_.name(), kMagic.size(),
                    "a torch.save stream of another version than 1001");
    EBB_TRY_ASSIGN(const PickleGraph writer, pickle("the facts about the writer"));
    EBB_TRY_ASSIGN(PickleGraph object, pickle("the object"));
    EBB_TRY_ASSIGN(const PickleGraph keys, pickle("the storage keys"));
    LegacyStream stream{std::move(object), {}};
    EBB_TRY(find_widths(stream.graph));
    EBB_TRY(find_storages(keys, stream));
    return stream;
  }

 private:
  Error bad(std::string_view why) const { return refuse(Code::corrupt, source_.name(), at_, why); }

  // The pickle at at_, which ends nobody knows where: more is read until it fits.
  Result<PickleGraph> pickle(std::string_view what) {
    const std::uint64_t left = source_.size() - at_;
    const std::string where = compose("{}:{}", source_.name(), at_);
    for (std::uint64_t size = std::min(kFirstRead, left);; size = std::min(size * 4, left)) {
      EBB_TRY_ASSIGN(ByteVector bytes, read_bytes(source_, at_, size, kMaxLegacyPickle));
      PickleGraph::End end;
      auto graph = PickleGraph::parse_front(std::move(bytes), where, end);
      if (!graph && end.ran_out && size < left) continue;
      if (!graph) return std::move(graph).error().within(what);
      at_ += end.at;
      return std::move(*graph);
    }
  }

  // How many bytes one element of each storage has: only the object's pickle says so.
  Result<> find_widths(const PickleGraph& graph) {
    for (PickleId id = 0; id < graph.size(); ++id) {
      if (!graph.is(id, PickleKind::persistent) || !is_torch_storage(graph, id)) continue;
      EBB_TRY_ASSIGN(const TorchStorage storage, torch_storage(graph, id));
      const auto [known, fresh] = widths_.emplace(storage.key, storage.width);
      if (!fresh && known->second != storage.width)
        return bad("storage '" + printable(storage.key) + "' has two types");
    }
    return {};
  }

  Result<> find_storages(const PickleGraph& keys, LegacyStream& stream) {
    if (!keys.is(keys.root(), PickleKind::list)) return bad("the storage keys are no list");
    for (const PickleId id : keys.items(keys.root())) {
      if (!keys.is(id, PickleKind::string)) return bad("a storage key is no string");
      const std::string key(keys.text(id));
      const auto width = widths_.find(key);
      if (width == widths_.end())
        return bad("storage '" + printable(key) + "' belongs to no tensor: its size is unknown");
      if (source_.size() - at_ < 8) return cut_off(key);
      EBB_TRY_ASSIGN(const ByteVector count, read_bytes(source_, at_, 8, 8));
      const auto bytes = checked_mul(load_le<std::uint64_t>(count), width->second);
      if (!bytes || *bytes > source_.size() - at_ - 8) return cut_off(key);
      if (!stream.storages.emplace(key, LegacyStorage{at_ + 8, *bytes}).second)
        return bad("storage '" + printable(key) + "' is listed twice");
      at_ += 8 + *bytes;
    }
    if (at_ != source_.size())
      return bad(compose("{} bytes follow the last storage", source_.size() - at_));
    return {};
  }

  Error cut_off(const std::string& key) const {
    return refuse(Code::incomplete, source_.name(), at_,
                  compose("the file ends at {}, inside storage '{}': it is cut off", source_.size(),
                          printable(key)));
  }

  const ByteSource& source_;
  std::uint64_t at_ = 0;
  std::map<std::string, std::uint32_t> widths_;
};

}  // namespace

bool is_legacy_magic(ByteView head) {
  return head.size() >= kMagic.size() &&
         std::memcmp(head.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<LegacyStream> read_legacy_stream(const ByteSource& source) { return Reader(source).run(); }

}  // namespace ebb::formats
