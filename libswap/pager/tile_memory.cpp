#include "ebb/libswap/pager/tile_memory.h"

namespace ebb::libswap {

Result<TileMemory> TileMemory::allocate(const Homes& homes, std::uint64_t tile_bytes,
                                        Device* device) {
  TileMemory memory(tile_bytes);
  EBB_TRY_ASSIGN(memory.host_, AlignedBuffer::allocate(homes.host_tiles() * tile_bytes));
  if (device != nullptr && homes.host_tiles() > 0) {
    EBB_TRY_ASSIGN(memory.pinned_, device->pin(memory.all()));
  }
  if (const std::uint64_t there = homes.count(Tier::device); there > 0) {
    EBB_CHECK(device != nullptr);
    EBB_TRY_ASSIGN(memory.there_, device->allocate(there * tile_bytes));
  }
  return memory;
}

}  // namespace ebb::libswap
