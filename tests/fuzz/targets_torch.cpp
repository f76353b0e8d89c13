// The pickle machine, the zip reader and the archives made of both.
#include "ebb/formats/core/decompress.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/payload.h"
#include "ebb/formats/torch/archive.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/targets.h"
#include "tests/support/archives.h"

namespace ebb::fuzz {
namespace {

using formats::PickleGraph;
using formats::PickleId;
using formats::PickleKind;
using formats::TorchArchive;

constexpr std::uint64_t kMaxElements = 1 << 20;

std::shared_ptr<const formats::ByteSource> source_of(ByteView input) {
  return std::make_shared<formats::MemorySource>("m", ByteVector(input.begin(), input.end()));
}

// Tensors at the top of a state dict, or the root itself: their elements, whole and in place.
void look_at_tensor(const TorchArchive& archive, PickleId id) {
  const auto tensor = torch_tensor(archive.graph(), id);
  if (!tensor) return;
  const auto elements = archive.elements(*tensor, kMaxElements);
  const auto plain = archive.plain(*tensor);
  if (!elements || !plain || !*plain || tensor->bytes() == 0) return;
  ByteVector again(static_cast<std::size_t>(tensor->bytes()));
  const std::uint64_t at = (*plain)->record_at + (*plain)->first;
  EBB_CHECK(archive.zip().source().read(at, again).has_value());
  EBB_CHECK(again == *elements);
}

void look_at_archive(const TorchArchive& archive) {
  const PickleGraph& graph = archive.graph();
  if (const auto value = value_of(graph, graph.root(), &archive)) to_json(*value);
  look_at_tensor(archive, graph.root());
  if (!graph.is(graph.root(), PickleKind::dict)) return;
  for (const PickleId id : graph.items(graph.root())) look_at_tensor(archive, id);
}

}  // namespace

void pickle(ByteView input) {
  const auto graph = PickleGraph::parse(ByteVector(input.begin(), input.end()), "m");
  if (!graph) return;
  const auto allowed = require_known_globals(*graph);
  for (const PickleGraph::Name& used : graph->names())
    EBB_CHECK(!allowed || formats::is_known_global(used.name));
  if (const auto value = value_of(*graph, graph->root(), nullptr)) to_json(*value);
}

void zip(ByteView input) {
  const auto archive = formats::ZipReader::open(source_of(input), 0, input.size());
  if (!archive) return;
  for (const formats::ZipEntry& entry : archive->entries()) {
    const auto bytes = archive->read(entry, formats::MiB);
    EBB_CHECK(!bytes || bytes->size() == entry.size);
    EBB_CHECK(entry.name.find("..") == std::string::npos ||
              entry.name.find("/../") == entry.name.npos);
  }
}

void torch_archive(ByteView input) {
  const bool zipped = formats::text_of(input).starts_with("PK");
  const ByteVector bytes =
      zipped ? ByteVector(input.begin(), input.end()) : test_support::archive_around(input);
  if (const auto archive = TorchArchive::open(source_of(bytes), 0, bytes.size()))
    look_at_archive(*archive);
}

void torch_file(ByteView input) {
  auto tree = std::make_shared<test_support::MemoryTree>("t");
  tree->add("c.pt", ByteVector(input.begin(), input.end()));
  look_at(std::move(tree));
}

void zstd_stream(ByteView input) {
  const auto bytes = formats::unzstd(input, formats::MiB, "m");
  EBB_CHECK(!bytes || bytes->size() <= formats::MiB);
}

}  // namespace ebb::fuzz
