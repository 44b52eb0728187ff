/* Makes system calls fail on purpose, and sets the clock. It is preloaded (LD_PRELOAD) by the campaigns `storage` and
 * `environment`.
 *
 *   FAULT_MATCH   a part of the paths whose calls fail
 *   FAULT_CALL    write, sync or create: which calls are counted, and fail
 *   FAULT_AT      the number of the first call that fails, from 1 on
 *   FAULT_FOR     how many calls fail; 0 for all that follow
 *   FAULT_ERRNO   the error; EROFS (30) also refuses to open a file for writing from then on
 *   FAULT_SEEN    a file that is made when the first call fails
 *   CLOCK_JUMP    seconds by which the wall clock is set forth and back again, once a second
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int calls; /* that were counted so far */

static long number(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

static int matches(const char *path) {
  const char *part = getenv("FAULT_MATCH");
  return part && path && strstr(path, part) != NULL;
}

static int descriptor_matches(int descriptor) {
  char link[64], path[4096];
  int kept = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = kept;
  if (length < 0) return 0;
  path[length] = 0;
  return matches(path);
}

static int active(int number_of_call) {
  long first = number("FAULT_AT"), count = number("FAULT_FOR");
  return number_of_call >= first && (count == 0 || number_of_call < first + count);
}

static void note(void) {
  const char *seen = getenv("FAULT_SEEN");
  int descriptor = seen ? (int)syscall(SYS_openat, AT_FDCWD, seen, O_WRONLY | O_CREAT, 0644) : -1;
  if (descriptor >= 0) close(descriptor);
}

static int fails(const char *call) {
  const char *wanted = getenv("FAULT_CALL");
  if (!wanted || strcmp(wanted, call) != 0) return 0;
  if (!active(__sync_add_and_fetch(&calls, 1))) return 0;
  note();
  errno = (int)number("FAULT_ERRNO");
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
  if (descriptor_matches(descriptor) && fails("write")) return -1;
  return REAL(write)(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
  if (descriptor_matches(descriptor) && fails("write")) return -1;
  return REAL(pwrite)(descriptor, data, size, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
  if (descriptor_matches(descriptor) && fails("write")) return -1;
  return REAL(pwrite64)(descriptor, data, size, offset);
}

int fsync(int descriptor) {
  if (descriptor_matches(descriptor) && fails("sync")) return -1;
  return REAL(fsync)(descriptor);
}

int fdatasync(int descriptor) {
  if (descriptor_matches(descriptor) && fails("sync")) return -1;
  return REAL(fdatasync)(descriptor);
}

static int refused(const char *path, int flags) {
  if (!matches(path)) return 0;
  if ((flags & O_CREAT) && access(path, F_OK) != 0 && fails("create")) return 1;
  if ((flags & (O_WRONLY | O_RDWR)) && number("FAULT_ERRNO") == EROFS && active(calls)) {
    errno = EROFS;
    return 1;
  }
  return 0;
}

#define MODE(last)                          \
  mode_t mode = 0;                          \
  if (flags & (O_CREAT | __O_TMPFILE)) {    \
    va_list rest;                           \
    va_start(rest, last);                   \
    mode = va_arg(rest, mode_t);            \
    va_end(rest);                           \
  }

int open(const char *path, int flags, ...) {
  MODE(flags)
  return refused(path, flags) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  MODE(flags)
  return refused(path, flags) ? -1 : REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return refused(path, flags) ? -1 : REAL(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
  MODE(flags)
  return refused(path, flags) ? -1 : REAL(openat64)(folder, path, flags, mode);
}

static time_t jump(time_t seconds) {
  return seconds % 2 ? number("CLOCK_JUMP") : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int code = REAL(clock_gettime)(clock, now);
  if (code == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump(now->tv_sec);
  return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int code = REAL(gettimeofday)(now, zone);
  if (code == 0) now->tv_sec += jump(now->tv_sec);
  return code;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
