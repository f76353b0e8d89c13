#include <cstdlib>
#include <string>

#include "bindings/c/guarded.h"
#include "bindings/c/names.h"

namespace ebb::c {
namespace {

constexpr ebb_error kNone = {sizeof(ebb_error), EBB_DONE, "", "", "", "", -1, -1, -1};

struct LastError {
  Error kept;  // what the view's texts lie in
  ebb_error view = kNone;
};

LastError& last_error() {
  thread_local LastError last;
  return last;
}

ebb_status status_of(Code code) {
  static_assert(-1 - static_cast<int>(Code::usage) == EBB_USAGE);
  static_assert(-1 - static_cast<int>(Code::state) == EBB_STATE);
  static_assert(-1 - static_cast<int>(Code::cancelled) == EBB_CANCELLED);
  return -1 - static_cast<ebb_status>(code);
}

template <typename Number>
int64_t or_unknown(const std::optional<Number>& number) {
  return number ? static_cast<int64_t>(*number) : -1;
}

ebb_status keep_literal(ebb_status code, const char* message, const char* hint) {
  ebb_error& view = last_error().view;
  view = kNone;
  view.code = code;
  view.message = message;
  view.hint = hint;
  return code;
}

ebb_status keep(Error error) noexcept {
  LastError& last = last_error();
  last.kept = std::move(error);
  const ErrorPlace& place = last.kept.place;
  last.view = {sizeof(ebb_error),        status_of(last.kept.code), last.kept.message.c_str(),
               last.kept.hint.c_str(),   place.file.c_str(),        place.tensor.c_str(),
               or_unknown(place.offset), or_unknown(place.rank),    or_unknown(place.step)};
  return last.view.code;
}

}  // namespace

void clear_error() noexcept { last_error().view = kNone; }

ebb_status keep_error(Error error) noexcept {
  try {
    Error said = error;
    said.message = in_c(said.message);
    said.hint = in_c(said.hint);
    return keep(std::move(said));
  } catch (const std::bad_alloc&) {
    return keep(std::move(error));  // in the words of C++
  }
}

ebb_status keep_no_memory() noexcept {
  return keep_literal(EBB_NO_MEMORY, "the process has no memory left for this call",
                      "give the process more, or take a smaller budget");
}

// What the exception says lies in the exception, which ends here.
ebb_status keep_internal(const char* what) noexcept {
  try {
    last_error().kept = {Code::state, std::string("a defect of Ebb's: ") + what,
                         "please report it with the calls that led here"};
  } catch (...) {
    return keep_no_memory();
  }
  return keep_literal(EBB_INTERNAL, last_error().kept.message.c_str(),
                      last_error().kept.hint.c_str());
}

}  // namespace ebb::c

uint32_t ebb_abi(void) noexcept { return EBB_ABI; }
const ebb_error* ebb_last_error(void) noexcept { return &ebb::c::last_error().view; }
void ebb_free(void* text) noexcept { std::free(text); }
