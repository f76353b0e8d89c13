// What our programs use of glibc that is younger than 2.28, for a link with ./make's libraries.
// Hidden: nothing outside a program or library that holds it sees it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct stat;

// 2.32. libstdc++ counts references without atomics where it is not 0.
char __libc_single_threaded = 0;

// 2.33; before, headers made these calls of them. 1: _STAT_VER_LINUX of x86-64.
int __xstat(int, const char *, struct stat *);
int __fxstat(int, int, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int stat(const char *path, struct stat *into) { return __xstat(1, path, into); }
int fstat(int file, struct stat *into) { return __fxstat(1, file, into); }
int lstat(const char *path, struct stat *into) { return __lxstat(1, path, into); }
int fstatat(int folder, const char *path, struct stat *into, int flags) {
  return __fxstatat(1, folder, path, into, flags);
}
int stat64(const char *, struct stat *) __attribute__((alias("stat")));
int fstat64(int, struct stat *) __attribute__((alias("fstat")));
int lstat64(const char *, struct stat *) __attribute__((alias("lstat")));
int fstatat64(int, const char *, struct stat *, int) __attribute__((alias("fstatat")));

// 2.30. A wait that ends early is allowed, and who calls looks at the clock: at most a second each,
// so that setting the system's clock delays nobody for longer.
static int64_t nanoseconds_of(struct timespec time) {
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int64_t now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return nanoseconds_of(time);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
  const int64_t second = 1000000000, left = nanoseconds_of(*until) - now(clock);
  if (left <= 0) return ETIMEDOUT;
  const int64_t end = now(CLOCK_REALTIME) + (left < second ? left : second);
  const struct timespec real = {end / second, end % second};
  const int status = pthread_cond_timedwait(condition, mutex, &real);
  return status == ETIMEDOUT && left > second ? 0 : status;
}

// 2.36, for std::random_device.
uint32_t arc4random(void) {
  uint32_t drawn;
  while (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
  }
  return drawn;
}

// 2.32. The names that input and output end with; NULL for others.
const char *strerrorname_np(int number) {
#define NAME(name) {name, #name}
  static const struct {
    int number;
    const char *name;
  } known[] = {
      NAME(EPERM),   NAME(ENOENT),    NAME(EINTR),  NAME(EIO),     NAME(ENXIO),        NAME(EBADF),
      NAME(EAGAIN),  NAME(ENOMEM),    NAME(EACCES), NAME(EFAULT),  NAME(EBUSY),        NAME(EEXIST),
      NAME(EXDEV),   NAME(ENODEV),    NAME(ENOTDIR), NAME(EISDIR), NAME(EINVAL),       NAME(ENFILE),
      NAME(EMFILE),  NAME(ETXTBSY),   NAME(EFBIG),  NAME(ENOSPC),  NAME(ESPIPE),       NAME(EROFS),
      NAME(EMLINK),  NAME(EPIPE),     NAME(ENOSYS), NAME(ELOOP),   NAME(ENAMETOOLONG), NAME(ENOTEMPTY),
      NAME(EDQUOT),  NAME(ESTALE),    NAME(EREMOTEIO), NAME(ECANCELED), NAME(EOPNOTSUPP), NAME(ETIMEDOUT),
      NAME(ECONNREFUSED), NAME(ECONNRESET), NAME(ENOTSUP), NAME(EOVERFLOW)};
#undef NAME
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (known[i].number == number) return known[i].name;
  return NULL;
}

const char *strerrordesc_np(int number) { return strerror(number); }

// 2.35: where the object that holds `pc` keeps what libgcc unwinds its calls with.
struct search {
  uintptr_t pc;
  void *frames;
};

static int search_in(struct dl_phdr_info *object, size_t size, void *asked) {
  (void)size;
  struct search *search = asked;
  void *frames = NULL;
  int here = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    const uintptr_t start = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) frames = (void *)start;
    if (part->p_type == PT_LOAD && search->pc - start < part->p_memsz) here = 1;
  }
  if (here) search->frames = frames;
  return here;
}

int _dl_find_object(void *pc, struct dl_find_object *result) {
  struct search search = {(uintptr_t)pc, NULL};
  dl_iterate_phdr(search_in, &search);
  memset(result, 0, sizeof *result);
  result->dlfo_eh_frame = search.frames;  // all that libgcc asks for
  return search.frames != NULL ? 0 : -1;
}
