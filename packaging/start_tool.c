// A tool of a wheel: starts ebb-tools, which lies beside it, under its own name.
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  (void)argc;
  char path[PATH_MAX], called[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof "ebb-tools");
  if (length <= 0) {
    perror("/proc/self/exe");
    return 2;
  }
  path[length] = '\0';
  char* const name = strrchr(path, '/') + 1;
  strcpy(called, name);
  strcpy(name, "ebb-tools");
  argv[0] = called;
  execv(path, argv);
  perror(path);
  return 2;
}
