#include "ebb/formats/pickle/calls.h"

#include <algorithm>
#include <string_view>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats {
namespace {

// Called by pickles of plain data; they make a value and do nothing else.
constexpr std::string_view kHarmless[] = {
    "array._array_reconstructor",
    "collections.deque",
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "copy_reg.__newobj__",
    "copyreg.__newobj__",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "ipaddress.IPv4Address",
    "random.Random",
    "types.SimpleNamespace",
    "uuid.UUID",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
};

// Top folders of Python's own library. A class of somebody's program is none of them.
constexpr std::string_view kLibrary[] = {
    "__builtin__", "_codecs",      "_posixsubprocess",
    "_thread",     "aifc",         "array",
    "ast",         "asyncio",      "atexit",
    "base64",      "bdb",          "binascii",
    "builtins",    "bz2",          "cgi",
    "cmd",         "code",         "codecs",
    "codeop",      "collections",  "commands",
    "compileall",  "concurrent",   "configparser",
    "contextlib",  "copy",         "copyreg",
    "copy_reg",    "cProfile",     "csv",
    "ctypes",      "dataclasses",  "datetime",
    "dbm",         "decimal",      "dis",
    "distutils",   "doctest",      "email",
    "ensurepip",   "fcntl",        "fileinput",
    "ftplib",      "functools",    "gc",
    "getpass",     "glob",         "gzip",
    "http",        "idlelib",      "imaplib",
    "imp",         "importlib",    "inspect",
    "io",          "_io",          "ipaddress",
    "itertools",   "json",         "linecache",
    "locale",      "logging",      "lzma",
    "marshal",     "mmap",         "multiprocessing",
    "nt",          "ntpath",       "operator",
    "_operator",   "os",           "pdb",
    "pickle",      "_pickle",      "pickletools",
    "pip",         "pipes",        "pkgutil",
    "platform",    "poplib",       "posix",
    "posixpath",   "profile",      "pty",
    "py_compile",  "pydoc",        "random",
    "re",          "resource",     "runpy",
    "sched",       "select",       "selectors",
    "shelve",      "shlex",        "shutil",
    "signal",      "site",         "smtplib",
    "socket",      "socketserver", "sqlite3",
    "ssl",         "string",       "struct",
    "subprocess",  "symtable",     "sys",
    "sysconfig",   "syslog",       "tarfile",
    "telnetlib",   "tempfile",     "test",
    "textwrap",    "threading",    "timeit",
    "tkinter",     "trace",        "traceback",
    "turtle",      "types",        "unittest",
    "urllib",      "uuid",         "venv",
    "webbrowser",  "winreg",       "wsgiref",
    "xmlrpc",      "zipapp",       "zipfile",
    "zipimport",
};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// A function by Python's custom of names, or anything of Python's own library.
bool is_suspect(std::string_view name) {
  if (contains(kLibrary, name.substr(0, name.find('.')))) return true;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last.empty() || last.front() < 'A' || last.front() > 'Z';
}

}  // namespace

Result<> refuse_calls(const PickleGraph& graph) {
  for (const PickleGraph::Name& used : graph.names()) {
    if (!used.called || is_known_global(used.name) || contains(kHarmless, used.name)) continue;
    if (used.name.starts_with("torch._utils._rebuild_") || !is_suspect(used.name)) continue;
    return refuse(Code::corrupt, graph.where(), used.offset,
                  "the pickle calls " + json_string(used.name) +
                      ", which no checkpoint needs; nothing was executed");
  }
  return {};
}

}  // namespace ebb::formats
