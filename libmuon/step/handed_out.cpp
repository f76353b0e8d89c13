#include "ebb/libmuon/step/handed_out.h"

#include <set>

#include "ebb/formats/core/crc32c.h"

namespace ebb::libmuon {

HandedOut::HandedOut(const Chunks& chunks, const Exchange& back) : runs_(chunks.count()) {
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    for (const Transit& part : back.given(chunks.weights(chunk))) runs_[chunk].push_back({part});
}

void HandedOut::note(std::size_t chunk, const Travels& travels, const Place& place) {
  for (Run& run : runs_[chunk]) {
    if (travels && !travels(run.part.param)) continue;
    run.crc = formats::crc32c(0, place(run.part).bytes());
  }
}

std::vector<std::uint32_t> HandedOut::changed(libswap::Pool& pool, const Place& place,
                                              const Travels& of) const {
  std::vector<const Run*> all;
  for (const auto& runs : runs_)
    for (const Run& run : runs)
      if (!of || of(run.part.param)) all.push_back(&run);
  std::vector<std::uint8_t> same(all.size());
  pool.run(all.size(), [&](std::size_t i) {
    same[i] = formats::crc32c(0, place(all[i]->part).bytes()) == all[i]->crc ? 1 : 0;
  });
  std::set<std::uint32_t> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (same[i] == 0) found.insert(all[i]->part.param);
  return {found.begin(), found.end()};
}

}  // namespace ebb::libmuon
