// What ranks have in their files beside what a checkpoint is read from: replicas. They were
// compared by their checksums when it was described; here the checksums are.
#include <algorithm>
#include <set>

#include "ebb/formats/torch_save/torch_save.h"
#include "ebb/formats/zip/inflate.h"
#include "ebb/formats/zip/record_check.h"
#include "ebb/formats/zip/zip.h"

namespace ebb::formats {
namespace torch_save {
namespace {

Result<> check_entry(const std::shared_ptr<const ByteSource>& source, std::uint64_t at,
                     const ZipEntry& entry) {
  if (entry.deflated) return InflateSource(source, at, entry).finish();
  return check_record(*source, {.name = entry.name,
                                .header_at = entry.header_at,
                                .at = at,
                                .size = entry.size,
                                .crc = entry.crc});
}

// Records of the file in which none of the chunks lies, which begin at `chunks`.
void check_replicas(const SourceTree& tree, const std::string& file,
                    const std::set<std::uint64_t>& chunks, std::vector<Error>& problems) {
  const auto source = tree.open(file);
  if (!source) return problems.push_back(source.error());
  const auto zip = ZipReader::open(*source, 0, (*source)->size());
  if (!zip) return;  // a stream has no checksums
  for (const ZipEntry& entry : zip->entries()) {
    if (!entry.has_crc() || entry.size == 0) continue;
    const auto at = zip->data_offset(entry);
    if (!at) return problems.push_back(at.error());
    const auto next = chunks.lower_bound(*at);
    if (next != chunks.end() && *next < *at + entry.stored_size) continue;
    if (auto whole = check_entry(*source, *at, entry); !whole)
      problems.push_back(std::move(whole).error());
  }
}

}  // namespace
}  // namespace torch_save

std::vector<Error> torch_problems(const std::shared_ptr<const SourceTree>& tree,
                                  const Catalog& catalog) {
  std::vector<std::set<std::uint64_t>> chunks(catalog.files.size());
  for (const TensorEntry& tensor : catalog.tensors)
    for (const Chunk& chunk : tensor.chunks) chunks[chunk.file].insert(chunk.offset);
  std::vector<Error> problems;
  for (std::size_t i = 0; i < catalog.files.size(); ++i)
    if (catalog.files[i].rank)
      torch_save::check_replicas(*tree, catalog.files[i].name, chunks[i], problems);
  return problems;
}

}  // namespace ebb::formats
