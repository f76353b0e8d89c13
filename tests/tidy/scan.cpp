// A scanner for C++ that is just good enough for the rules: it knows comments, literals and braces.
#include <cctype>
#include <string>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text), out_(text) {}

  std::string run() {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  bool starts(std::string_view prefix) const { return text_.substr(at_).starts_with(prefix); }

  void blank_until(std::size_t limit) {
    for (; at_ < limit && at_ < text_.size(); ++at_) {
      if (text_[at_] != '\n') out_[at_] = ' ';
    }
  }

  // The position behind the next `token`, or the end of the text.
  std::size_t behind(std::string_view token, std::size_t from) const {
    const std::size_t found = text_.find(token, from);
    return found == std::string_view::npos ? text_.size() : found + token.size();
  }

  void step() {
    const bool after_word = at_ > 0 && is_word(text_[at_ - 1]);
    if (starts("//")) return blank_until(text_.find('\n', at_));
    if (starts("/*")) return blank_until(behind("*/", at_ + 2));
    if (starts("R\"") && !after_word) return raw_string();
    // 1'000 is a number, not the start of a character.
    if (text_[at_] == '"' || (text_[at_] == '\'' && !after_word)) return literal(text_[at_]);
    ++at_;
  }

  void raw_string() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) return blank_until(text_.size());
    std::string close(1, ')');
    close.append(text_.substr(at_ + 2, open - at_ - 2)).append(1, '"');
    blank_until(behind(close, open));
  }

  void literal(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n') {
      end += text_[end] == '\\' ? 2 : 1;
    }
    ++at_;  // the quotes stay, so that "" is still seen as a word of a head
    blank_until(end);
    if (at_ < text_.size() && text_[at_] == quote) ++at_;
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
};

bool has_word(const std::string& text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const bool starts = at == 0 || !is_word(text[at - 1]);
    const bool ends = at + word.size() >= text.size() || !is_word(text[at + word.size()]);
    if (starts && ends) return true;
  }
  return false;
}

std::string trim_right(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  return text;
}

// Whether a constructor's initialiser list has begun: a single colon behind a closing parenthesis.
bool has_initialisers(const std::string& head) {
  for (std::size_t at = head.find(')'); at != std::string::npos; at = head.find(')', at + 1)) {
    const std::size_t next = head.find_first_not_of(' ', at + 1);
    if (next == std::string::npos || head[next] != ':') continue;
    if (next + 1 == head.size() || head[next + 1] != ':') return true;
  }
  return false;
}

enum class Brace { scope, function, other };

// What a '{' opens, told by the text since the last statement or brace at this level.
Brace classify(const std::string& untrimmed) {
  const std::string head = trim_right(untrimmed);
  const bool has_parameters = head.find(')') != std::string::npos;
  if (has_word(head, "namespace") || head.starts_with("extern")) return Brace::scope;
  for (const char* word : {"class", "struct", "union", "enum"}) {
    if (has_word(head, word) && !has_parameters) return Brace::scope;
  }
  if (!has_parameters || head.ends_with("=")) return Brace::other;
  if (has_initialisers(head) && (is_word(head.back()) || head.back() == '>')) return Brace::other;
  return Brace::function;
}

// Walks braces; bodies of functions are skipped whole, bodies of scopes are entered.
class FunctionFinder {
 public:
  std::vector<Function> run(const std::vector<std::string>& code) {
    for (std::size_t i = 0; i < code.size(); ++i) {
      const std::size_t first = code[i].find_first_not_of(' ');
      const bool directive = first != std::string::npos && code[i][first] == '#';
      if (directive || continues_) {  // a macro's body is not code of this file
        continues_ = !code[i].empty() && code[i].back() == '\\';
        continue;
      }
      for (char c : code[i]) take(c, i + 1);
      if (!head_.empty()) head_ += ' ';
    }
    return std::move(found_);
  }

 private:
  void take(char c, std::size_t line) {
    if (depth_ > 0) return inside(c, line);
    if (c == '{') return open(line);
    if (c == ';' || c == '}') return head_.clear();
    if (head_.empty() && (c == ' ' || c == '\t')) return;
    if (head_.empty()) head_line_ = line;
    head_ += c;
  }

  void open(std::size_t line) {
    if (head_.empty()) head_line_ = line;
    brace_ = classify(head_);
    if (brace_ == Brace::scope) return head_.clear();
    depth_ = 1;
  }

  void inside(char c, std::size_t line) {
    if (c == '{') ++depth_;
    if (c == '}') --depth_;
    if (depth_ > 0) return;
    if (brace_ == Brace::other) return;  // an initialiser: the head goes on behind it
    found_.push_back({head_line_, line - head_line_ + 1});
    head_.clear();
  }

  std::vector<Function> found_;
  std::string head_;
  std::size_t head_line_ = 0;
  std::size_t depth_ = 0;  // inside the body being skipped
  Brace brace_ = Brace::scope;
  bool continues_ = false;
};

}  // namespace

std::string blank_comments_and_literals(std::string_view text) { return Blanker(text).run(); }

std::vector<Function> find_functions(const std::vector<std::string>& code) {
  return FunctionFinder().run(code);
}

}  // namespace ebb::tidy
