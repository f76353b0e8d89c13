// A few numbers, one for each dimension of a tensor: its extents, an offset in it, strides. Up to
// four lie in the object itself, so that an index of a million chunks is not two million pieces of
// memory.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>

namespace ebb::formats {

// Slowest dimension first; empty = a scalar. The functions are those of std::vector.
class Shape {
 public:
  using value_type = std::uint64_t;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = value_type&;
  using const_reference = const value_type&;
  using iterator = value_type*;
  using const_iterator = const value_type*;

  Shape() = default;
  explicit Shape(std::size_t count, value_type value = 0) : Shape() { resize(count, value); }
  Shape(std::initializer_list<value_type> values) : Shape(values.begin(), values.end()) {}
  explicit Shape(std::span<const value_type> values) : Shape(values.begin(), values.end()) {}
  template <std::forward_iterator Iterator>
  Shape(Iterator first, Iterator last) : Shape() {
    insert(end(), first, last);
  }
  Shape(const Shape& other) : Shape() { insert(end(), other.begin(), other.end()); }
  Shape(Shape&& other) noexcept : Shape() { swap(other); }
  Shape& operator=(const Shape& other) {
    if (this == &other) return *this;
    clear();
    insert(end(), other.begin(), other.end());
    return *this;
  }
  Shape& operator=(Shape&& other) noexcept {
    Shape taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~Shape() {
    if (capacity_ > kFew) delete[] many();
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  value_type* data() { return capacity_ > kFew ? many() : few_.data(); }
  const value_type* data() const { return capacity_ > kFew ? many() : few_.data(); }
  iterator begin() { return data(); }
  iterator end() { return data() + size_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size_; }
  // REQUIRES: it is there.
  value_type& operator[](std::size_t at) { return data()[at]; }
  const value_type& operator[](std::size_t at) const { return data()[at]; }
  value_type& front() { return *begin(); }
  const value_type& front() const { return *begin(); }
  value_type& back() { return *(end() - 1); }
  const value_type& back() const { return *(end() - 1); }

  void reserve(std::size_t count) {
    if (count > capacity_) grow(count);
  }
  void clear() { size_ = 0; }
  void assign(std::size_t count, value_type value) {
    clear();
    resize(count, value);
  }
  void resize(std::size_t count, value_type value = 0) {
    reserve(count);
    if (count > size_) std::fill(end(), data() + count, value);
    size_ = static_cast<std::uint32_t>(count);
  }
  void push_back(value_type value) {
    reserve(std::size_t{size_} + 1);
    data()[size_++] = value;
  }
  void pop_back() { --size_; }
  iterator insert(const_iterator at, value_type value) { return insert(at, &value, &value + 1); }
  // REQUIRES: the range is not of this.
  template <std::forward_iterator Iterator>
  iterator insert(const_iterator at, Iterator first, Iterator last) {
    const auto before = static_cast<std::size_t>(at - begin());
    const auto count = static_cast<std::size_t>(std::distance(first, last));
    reserve(size_ + count);
    iterator place = begin() + before;
    std::copy_backward(place, end(), end() + count);
    std::copy(first, last, place);
    size_ += static_cast<std::uint32_t>(count);
    return place;
  }
  iterator erase(const_iterator at) {
    iterator place = begin() + (at - begin());
    std::copy(place + 1, end(), place);
    pop_back();
    return place;
  }
  void swap(Shape& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    std::swap(few_, other.few_);
  }

  bool operator==(const Shape& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  std::strong_ordering operator<=>(const Shape& other) const {
    return std::lexicographical_compare_three_way(begin(), end(), other.begin(), other.end());
  }

 private:
  static constexpr std::uint32_t kFew = 4;
  value_type* many() const { return reinterpret_cast<value_type*>(few_[0]); }
  void grow(std::size_t count) {
    const std::size_t capacity = std::max<std::size_t>(count, 2 * std::size_t{capacity_});
    auto* const moved = new value_type[capacity];
    std::copy(begin(), end(), moved);
    if (capacity_ > kFew) delete[] many();
    few_[0] = reinterpret_cast<std::uintptr_t>(moved);
    capacity_ = static_cast<std::uint32_t>(capacity);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = kFew;
  std::array<value_type, kFew> few_{};  // the numbers; when there are more, the address of all
};

}  // namespace ebb::formats

namespace ebb {
using formats::Shape;
}  // namespace ebb
