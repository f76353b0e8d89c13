// How a program begins, for a link with ./make's libraries. 2.34 runs a program's constructors by
// itself; before, what starts it (crt1.o, here of a younger system) told it how.
#include <stddef.h>

typedef void function(int, char **, char **);
extern function *__preinit_array_start[], *__preinit_array_end[];
extern function *__init_array_start[], *__init_array_end[];
extern void _init(void);

static void construct(int argc, char **argv, char **environment) {
  for (function **one = __preinit_array_start; one != __preinit_array_end; ++one)
    (*one)(argc, argv, environment);
  _init();
  for (function **one = __init_array_start; one != __init_array_end; ++one)
    (*one)(argc, argv, environment);
}

int start(int (*)(int, char **, char **), int, char **, function *, void (*)(void), void (*)(void),
          void *);
__asm__(".symver start, __libc_start_main@GLIBC_2.2.5");

int __libc_start_main(int (*body)(int, char **, char **), int argc, char **argv, function *unused,
                      void (*finish)(void), void (*loader)(void), void *stack) {
  return start(body, argc, argv, unused != NULL ? unused : construct, finish, loader, stack);
}
