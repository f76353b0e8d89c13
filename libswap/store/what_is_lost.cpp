#include "ebb/libswap/store/what_is_lost.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/native/meta_scan.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/store/io_source.h"

namespace ebb::libswap {
namespace {

using formats::native::Manifest;

constexpr std::size_t kMostLost = 8;

Result<Manifest> newest_in(const formats::ByteSource& meta) {
  EBB_TRY_ASSIGN(const auto scan, formats::native::scan_meta(meta));
  const auto* newest = scan.newest_valid(formats::native::kMaxGeneration);
  if (newest == nullptr) return Error{Code::incomplete, "no generation"};
  return formats::native::read_manifest(meta, scan.superblock, newest->region);
}

std::optional<Manifest> manifest_at(IoQueue& io, const fs::path& meta) {
  const auto file = io.backend().open(meta, {});
  if (!file) return std::nullopt;
  const auto info = io.backend().info(*file);
  auto manifest = newest_in(IoSource(io, *file, meta.string(), info ? info->size : 0));
  static_cast<void>(io.backend().close(*file).has_value());
  return manifest ? std::optional(std::move(*manifest)) : std::nullopt;
}

// The manifests of those ranks' folders that this rank is the first to reach.
Result<std::vector<Manifest>> left_here(IoQueue& io, std::span<const fs::path> folders,
                                        std::uint32_t world, Ranks& ranks) {
  std::vector<fs::path> metas(world);
  ByteVector reached(world, std::byte{0});
  for (std::uint32_t rank = 0; rank < world; ++rank)
    for (const fs::path& folder : folders) {
      const fs::path meta =
          folder / formats::native::rank_directory(Rank{rank}, world) / formats::native::kMetaFile;
      const auto there = io.backend().exists(meta);
      if (reached[rank] != std::byte{0} || !there || !*there) continue;
      metas[rank] = meta;
      reached[rank] = std::byte{1};
    }
  EBB_TRY_ASSIGN(const auto said, gather(ranks, reached));
  std::vector<Manifest> manifests;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const auto first = std::ranges::find_if(
        said, [&](const ByteVector& other) { return other[rank] != std::byte{0}; });
    if (first - said.begin() != index_of(ranks.rank())) continue;
    if (auto manifest = manifest_at(io, metas[rank])) manifests.push_back(std::move(*manifest));
  }
  return manifests;
}

Result<std::size_t> largest(Ranks& ranks, std::size_t mine) {
  EBB_TRY_ASSIGN(const std::int64_t lowest, ranks.agree(-static_cast<std::int64_t>(mine)));
  return static_cast<std::size_t>(-lowest);
}

std::string listed(std::string_view what, const std::vector<std::string>& names) {
  std::string text(what);
  for (std::size_t i = 0; i < std::min(names.size(), kMostLost); ++i)
    text += (i == 0 ? " " : ", ") + names[i];
  if (names.size() > kMostLost) text += compose(" and {} more", names.size() - kMostLost);
  return text;
}

// `held`: elements of each parameter's states that are left, all ranks together.
std::string text_of(const Manifest& model, std::span<const std::int64_t> held, std::size_t states) {
  std::vector<std::string> all, parts;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    const auto of_param = held.subspan(i * states, states);
    const auto whole = static_cast<std::int64_t>(formats::volume(model.params[i].shape));
    const bool any = std::ranges::any_of(of_param, [](std::int64_t left) { return left > 0; });
    const bool holes =
        std::ranges::any_of(of_param, [&](std::int64_t left) { return left > 0 && left < whole; });
    const std::string name(formats::printable(model.params[i].name));
    if (!any)
      all.push_back(name);
    else if (holes)
      parts.push_back(name);
  }
  std::string text = all.empty() ? "" : listed("all of", all);
  if (!parts.empty()) text += (text.empty() ? "" : "; ") + listed("parts of", parts);
  return text;
}

}  // namespace

Result<std::string> what_is_lost(IoQueue& io, std::span<const fs::path> folders,
                                 std::uint32_t world, Ranks& ranks) {
  EBB_TRY_ASSIGN(const std::vector<Manifest> left, left_here(io, folders, world, ranks));
  const bool any = !left.empty();
  EBB_TRY_ASSIGN(const std::size_t params, largest(ranks, any ? left[0].params.size() : 0));
  EBB_TRY_ASSIGN(const std::size_t states, largest(ranks, any ? left[0].states.size() : 0));
  std::vector<std::int64_t> held(params * states, 0);
  for (const Manifest& manifest : left)
    for (const auto& tile : manifest.tiles)
      for (const auto& segment : tile.segments)
        if (segment.param < params && segment.state < states)
          held[segment.param * states + segment.state] += static_cast<std::int64_t>(segment.count);
  EBB_TRY(ranks.sum(held));
  const std::string mine = any ? text_of(left[0], held, states) : "";
  EBB_TRY_ASSIGN(const auto said, gather(ranks, formats::view_of(mine)));
  const auto first = std::ranges::find_if(said, [](const auto& text) { return !text.empty(); });
  return first == said.end() ? std::string() : std::string(formats::text_of(*first));
}

}  // namespace ebb::libswap
