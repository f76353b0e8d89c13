// Files that torch.save wrote.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/formats/catalog/catalog.h"

namespace ebb {

inline const std::filesystem::path kFixtures = std::filesystem::path(EBB_FIXTURES) / "torch";

// Every tensor in pieces of 7 bytes from the back to the front, beside all of it at once.
inline void expect_the_same_in_parts(const formats::Checkpoint& checkpoint) {
  for (const formats::TensorEntry& tensor : checkpoint.catalog().tensors)
    for (const formats::Chunk& chunk : tensor.chunks) {
      ByteVector whole(formats::volume(chunk.box.extent) * bytes_of(tensor.dtype));
      ByteVector parts(whole.size());
      ASSERT_TRUE(checkpoint.read(tensor, chunk, 0, whole).has_value());
      for (std::size_t end = parts.size(); end > 0;) {
        const std::size_t begin = end < 7 ? 0 : end - 7;
        const auto part = std::span(parts).subspan(begin, end - begin);
        ASSERT_TRUE(checkpoint.read(tensor, chunk, begin, part).has_value());
        end = begin;
      }
      EXPECT_EQ(parts, whole) << *tensor.key;
    }
}

}  // namespace ebb
