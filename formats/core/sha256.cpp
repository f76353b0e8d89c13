#include "ebb/formats/core/sha256.h"

#include <openssl/sha.h>

#include <array>

#include "ebb/formats/core/check.h"

namespace ebb::formats {

// OpenSSL's plain functions: EVP would bring all its other algorithms into a program that links the
// library statically. They always succeed.
void Sha256::Free::operator()(SHA256state_st* state) const { delete state; }

Sha256::Sha256() : state_(new SHA256_CTX) { EBB_CHECK(SHA256_Init(state_.get()) == 1); }

void Sha256::update(ByteView bytes) {
  EBB_CHECK(SHA256_Update(state_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, 32> digest{};
  EBB_CHECK(SHA256_Final(digest.data(), state_.get()) == 1);
  std::string text;
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string sha256_hex(ByteView bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.hex();
}

}  // namespace ebb::formats
