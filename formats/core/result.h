// Result<T>: a T or an Error, and the compiler complains if nobody looks.
// The subset of std::expected<T, Error> we use; C++20 because nvcc 13.0 stops there.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/error.h"

namespace ebb::formats {

template <typename T = void>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // REQUIRES: !has_value()
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  T& value() {
    EBB_CHECK(has_value());
    return std::get<0>(state_);
  }
  const T& value() const {
    EBB_CHECK(has_value());
    return std::get<0>(state_);
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }

  const Error& error() const& { return *error_; }
  Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace ebb::formats

namespace ebb {
using formats::Result;
}  // namespace ebb

#define EBB_CONCAT_INNER(a, b) a##b
#define EBB_CONCAT(a, b) EBB_CONCAT_INNER(a, b)
#define EBB_TRY_ASSIGN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                           \
  if (!temporary) return std::move(temporary).error();     \
  target = std::move(*temporary)

// EBB_TRY(f()) returns f's error from the enclosing function; EBB_TRY_ASSIGN(auto x, f()) also
// takes its value.
#define EBB_TRY(expression)                                                                   \
  do {                                                                                        \
    if (auto try_result_ = (expression); !try_result_) return std::move(try_result_).error(); \
  } while (false)
#define EBB_TRY_ASSIGN(target, expression) \
  EBB_TRY_ASSIGN_IMPL(EBB_CONCAT(try_assign_, __COUNTER__), target, expression)
