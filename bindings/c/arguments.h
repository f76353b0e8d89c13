// What callers pass, checked before anything reads it: pointers, texts, sized structs.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/c/ebb.h"
#include "ebb/formats/core/result.h"

namespace ebb::c {

inline Error missing(std::string_view what) {
  return {Code::usage, std::string(what) + " is NULL", "see ebb.h for what may be NULL"};
}

template <typename T>
Result<std::span<const T>> array_of(const T* first, uint64_t count, std::string_view what) {
  if (count == 0) return std::span<const T>();
  if (first == nullptr) return missing(what);
  return std::span<const T>(first, count);
}

inline Result<std::string_view> text_of(const char* text, std::string_view what) {
  if (text == nullptr) return missing(what);
  return std::string_view(text);
}

// Where an answer goes.
template <typename T>
Result<> check_place(T* place, std::string_view what) {
  if (place == nullptr) return missing(what);
  return {};
}

// A struct of the caller's, of whatever version.
template <typename T>
Result<T> sized(const T* given, std::string_view what) {
  if (given == nullptr) return missing(what);
  const uint64_t size = given->size;
  constexpr uint64_t kMost = 1 << 16;
  // Cut inside of a pointer, say, is no version of it.
  if (size < sizeof(given->size) || size > kMost || size % alignof(T) != 0)
    return Error{Code::usage, compose("{} says that it has {} bytes", what, size),
                 "begin with: {sizeof the struct}"};
  T known{};
  std::memcpy(&known, given, std::min<uint64_t>(size, sizeof(T)));
  known.size = sizeof(T);
  const auto* const bytes = reinterpret_cast<const char*>(given);
  for (uint64_t at = sizeof(T); at < size; ++at)
    if (bytes[at] != 0)
      return Error{Code::unsupported,
                   compose("{} asks, in byte {}, for what this library does not know", what, at),
                   "use the ebb.h that came with the library"};
  return known;
}

// An array of structs of the caller's version: one lies as many bytes behind the other as they say.
template <typename T>
Result<std::vector<T>> all_sized(const T* first, uint64_t count, std::string_view what,
                                 std::string_view one) {
  EBB_TRY(array_of(first, count, what));
  std::vector<T> known;
  const auto* at = reinterpret_cast<const char*>(first);
  for (uint64_t i = 0; i < count; ++i) {
    const auto* const given = reinterpret_cast<const T*>(at);
    EBB_TRY_ASSIGN(T next, sized(given, compose("{} {}", one, i)));
    if (given->size != first->size)
      return Error{Code::usage, compose("{} {} has {} bytes, and the first {}", one, i, given->size,
                                        first->size)};
    known.push_back(next);
    at += first->size;
  }
  return known;
}

// A struct that is answered: as much of it as the caller knows.
template <typename T>
Result<> answer(T* place, T value, std::string_view what) {
  if (place == nullptr) return missing(what);
  const uint64_t size = place->size;
  if (size < sizeof(place->size))
    return Error{Code::usage, compose("{} says that it has {} bytes", what, size),
                 "begin with: {sizeof the struct}"};
  value.size = size;
  std::memcpy(place, &value, std::min<uint64_t>(size, sizeof(T)));
  return {};
}

// For the caller to free.
Result<> answer_text(char** place, std::string_view text, std::string_view what);

}  // namespace ebb::c
