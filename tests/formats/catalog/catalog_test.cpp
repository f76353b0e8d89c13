#include "ebb/formats/catalog/catalog.h"

#include <gtest/gtest.h>

#include <limits>

namespace ebb::formats {
namespace {

// Answers every read; what it was asked is not its business.
class Anything : public Checkpoint {
 public:
  const Catalog& catalog() const override { return catalog_; }

 private:
  Result<> read_chunk(const TensorEntry&, const Chunk&, std::uint64_t,
                      std::span<std::byte>) const override {
    return {};
  }

  Catalog catalog_;
};

TEST(Checkpoint, AReadPastAChunksEndIsRefusedWhateverTheFormat) {
  TensorEntry tensor;
  tensor.name = "w";
  tensor.state = "param";
  tensor.dtype = DType::bf16;
  const Chunk chunk{.box = {.offset = {2, 0}, .extent = {3, 4}}};  // 24 bytes
  ByteVector into(24);
  const std::span<std::byte> all(into);
  const Anything checkpoint;
  EXPECT_TRUE(checkpoint.read(tensor, chunk, 0, all));
  EXPECT_TRUE(checkpoint.read(tensor, chunk, 24, all.first(0)));
  const auto refused = [&](std::uint64_t first, std::size_t bytes) {
    const auto done = checkpoint.read(tensor, chunk, first, all.first(bytes));
    return !done && done.error().code == Code::usage &&
           done.error().message.starts_with("w (param)");
  };
  EXPECT_TRUE(refused(1, 24));
  EXPECT_TRUE(refused(24, 1));
  EXPECT_TRUE(refused(std::numeric_limits<std::uint64_t>::max(), 2));
}

}  // namespace
}  // namespace ebb::formats
