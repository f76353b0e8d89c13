#include "tools/pictures/page.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "tools/pictures/web.h"

namespace ebb::tools::pictures {
namespace {

struct Sort {
  std::string_view name;       // for messages
  std::string_view beginning;  // of every page of the kind, and of no other file
};

// In the order of Kind.
constexpr std::array kSorts = {
    Sort{"shard map",
         "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Shard map: "},
    Sort{"plan of a conversion",
         "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Conversion: "},
    Sort{"picture of norms",
         "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Norms: "},
    Sort{"picture of disk rates",
         "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Disk rates: "},
};

const Sort& sort_of(Kind kind) { return kSorts.at(static_cast<std::size_t>(kind)); }

// In the order of Kind.
std::string script_of(Kind kind) {
  using Parts = std::vector<std::string_view>;
  const std::array<Parts, 4> kOwn = {Parts{web::layers_js, web::pieces_js, web::map_js},
                                     Parts{web::layers_js, web::pieces_js, web::plan_js},
                                     Parts{web::layers_js, web::norms_js}, Parts{web::rates_js}};
  std::string script;
  for (const std::string_view part : {web::marks_js, web::figure_js, web::page_js}) script += part;
  for (const std::string_view part : kOwn.at(static_cast<std::size_t>(kind))) script += part;
  return script;
}

constexpr std::array<std::pair<char, std::string_view>, 4> kEntities = {
    {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}}};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char& c : printable(text, 1000)) {
    const auto* entity = std::ranges::find(kEntities, c, &std::pair<char, std::string_view>::first);
    out += entity == kEntities.end() ? std::string_view(&c, 1) : entity->second;
  }
  return out;
}

// In JSON '<' is only ever inside a string: no name can end the block or begin a comment.
std::string inert(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char& c : json) out.append(c == '<' ? "\\u003c" : std::string_view(&c, 1));
  return out;
}

std::uint32_t value_of_hex(char digit) {
  return static_cast<std::uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

// Base64 of 32 bytes that are given in hex.
std::string base64_of_digest(const std::string& hex) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  EBB_CHECK(hex.size() == 64);
  std::string out;
  // Three hex digits are two letters; the last two digits are the last byte.
  for (std::size_t at = 0; at < 63; at += 3) {
    const std::uint32_t twelve =
        value_of_hex(hex[at]) << 8 | value_of_hex(hex[at + 1]) << 4 | value_of_hex(hex[at + 2]);
    out += {kLetters[twelve >> 6], kLetters[twelve & 63]};
  }
  const std::uint32_t last = value_of_hex(hex[63]) << 2;
  return out + kLetters[last] + "=";
}

// Nothing but this very script runs, and nothing is fetched.
std::string policy_of(const std::string& script) {
  return compose(
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; "
      "form-action 'none'; require-trusted-types-for 'script'",
      base64_of_digest(formats::sha256_hex(formats::view_of(script))));
}

}  // namespace

Result<ResultFile> picture_file(std::string_view flag, const std::string& file, Kind kind) {
  if (!file.ends_with(".html") && !file.ends_with(".htm"))
    return Error{
        Code::usage,
        compose("{} {}: the {} is a page of HTML", flag, printable(file), sort_of(kind).name),
        compose("{} picture.html", flag)};
  ResultFile result{flag, file, sort_of(kind).name, sort_of(kind).beginning};
  EBB_TRY(check_replaceable(result));
  return result;
}

std::string html_of(Kind kind, const Page& page) {
  const std::string script = script_of(kind);
  std::string lines;
  for (const std::string& warning : page.warnings)
    lines += compose("<p class=\"warning\">{}</p>\n", escaped(warning));
  for (const std::string& fact : page.facts) lines += compose("<p>{}</p>\n", escaped(fact));
  std::string out = compose(
      "{}{}</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<style>\n{}</style></head>\n<body><main>\n<h1>{}</h1>\n<p class=\"of\">{}</p>\n{}"
      "<noscript><p class=\"warning\">The picture and its table are drawn by the script in this "
      "page, which the browser does not run.</p></noscript>\n<div id=\"picture\"></div>\n</main>\n",
      sort_of(kind).beginning, escaped(page.subject), policy_of(script), web::frame_css,
      escaped(page.headline), escaped(page.subject), lines);
  out += compose("<script type=\"application/json\" id=\"data\">{}</script>\n", inert(page.data));
  return out.append("<script>").append(script).append("</script>\n</body></html>\n");
}

Result<std::uint64_t> write_page(const ResultFile& file, Kind kind, const Page& page) {
  const std::string html = html_of(kind, page);
  EBB_TRY(write_result(file, html));
  return html.size();
}

}  // namespace ebb::tools::pictures
