// A step of an optimizer that computes next to nothing on state that is paged: fp32 parameters and
// momentum, in each tile half and half, through the store, the pager and the queue of the engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/libswap/pager/stream.h"

namespace ebb::bench {

// Whether checksums are computed; without, each is 0, when it is stored and when it is compared.
enum class Checksums : std::uint8_t { on, off };
void set_checksums(Checksums checksums);

struct StepTimes {
  double seconds = 0;
  // Of the whole process, and system time among it of the queue's thread alone.
  double user_s = 0, system_s = 0, io_thread_s = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

// Where in a file a step reads and writes, in its order, and what lies where it reads: in each
// place the same bytes.
struct Places {
  std::filesystem::path file;
  std::vector<std::uint64_t> reads, writes;
  ByteVector content;
};

class PagedStep {
 public:
  struct Config {
    std::filesystem::path directory;  // made
    std::uint64_t state_bytes = 0;
    std::uint64_t tile_bytes = 4u << 20;
    std::uint64_t frame_bytes = 128u << 20;
    double resident = 0;  // share of the tiles
    Checksums checksums = Checksums::on;
    libswap::BackendChoice backend = libswap::BackendChoice::automatic;
    libswap::IoQueue::Options queue = {};
  };
  static Result<std::unique_ptr<PagedStep>> make(const Config& config);
  ~PagedStep();
  PagedStep(const PagedStep&) = delete;
  PagedStep& operator=(const PagedStep&) = delete;

  enum class Work : std::uint8_t { update, none };
  // Until the last byte is with the disk.
  Result<StepTimes> step(Work work);
  // Of the next step. What lies where it writes is of no use to anybody. REQUIRES: nothing
  // resident.
  Result<Places> places() const;
  // Every element is what so many updates make of it. Reads all state.
  Result<> compare();

 private:
  explicit PagedStep(const Config& config) : config_(config) {}
  Result<> open();
  Result<> visit(libswap::TileCache::Use use, Work work);
  std::pair<float, float> state() const;  // of each element: parameter, momentum
  void wait_until_written(std::uint64_t bytes) const;
  double io_thread_seconds() const;

  Config config_;
  std::uint64_t paged_bytes_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t updates_ = 0;
  std::string io_thread_;  // its folder below /proc
  std::unique_ptr<libswap::Pool> pool_;
  std::unique_ptr<libswap::IoQueue> io_;
  std::unique_ptr<libswap::Store> store_;
  std::unique_ptr<libswap::TileCache> cache_;
};

}  // namespace ebb::bench
