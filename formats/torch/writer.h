// Small torch.save archives inside other files: one tensor, whose elements may come later, or one
// value. The bytes around the tensor are known before its elements are; only the CRC32 is filled in
// afterwards (zip's data descriptor), so nothing is buffered or patched. file_writer.h makes files.
#pragma once

#include <cstdint>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"

namespace ebb::formats {

// An archive of one dense tensor: head, then its row-major elements, then tail(crc32 of them).
class TensorArchiveWriter {
 public:
  // REQUIRES: torch_name_of(dtype) is not empty, and the shape's volume fits.
  TensorArchiveWriter(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {}

  ByteVector head() const;  // a multiple of 64 bytes
  std::uint64_t data_bytes() const { return volume(shape_) * bytes_of(dtype_); }
  ByteVector tail(std::uint32_t crc32_zip) const;  // its size does not depend on the CRC

 private:
  DType dtype_;
  Shape shape_;
};

// A whole archive of one value, as torch.save(value) would make it. Fails (Code::unsupported) for
// what cannot be written back: an object of which only the class name is known.
Result<ByteVector> value_archive(const Value& value);

}  // namespace ebb::formats
