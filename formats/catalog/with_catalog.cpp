#include "ebb/formats/catalog/with_catalog.h"

#include <utility>

namespace ebb::formats {
namespace {

class WithCatalog : public Checkpoint {
 public:
  WithCatalog(std::unique_ptr<Checkpoint> stored, Catalog catalog)
      : stored_(std::move(stored)), catalog_(std::move(catalog)) {}

  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    return stored_->read(tensor, chunk, first, into);
  }

 private:
  std::unique_ptr<Checkpoint> stored_;
  Catalog catalog_;
};

}  // namespace

std::unique_ptr<Checkpoint> with_catalog(std::unique_ptr<Checkpoint> stored, Catalog catalog) {
  return std::make_unique<WithCatalog>(std::move(stored), std::move(catalog));
}

}  // namespace ebb::formats
