/* Preloaded into a process, lets its calls on files below one directory fail from a chosen one on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX], call[16];
static int error_number;
static long first, seen, failed;

/* Calls of a kind fail with an error from a number on, counted from 1. */
void disk_faults_begin(const char *below, const char *kind, int error, long from) {
    snprintf(root, sizeof root, "%s", below);
    snprintf(call, sizeof call, "%s", kind);
    error_number = error, first = from, seen = failed = 0;
}

long disk_faults_count(void) { return failed; }

static int fails(const char *kind, const char *path) {
    size_t size = strlen(root);
    if (!size || strcmp(kind, call) || !path || strncmp(path, root, size)) return 0;
    if (__sync_add_and_fetch(&seen, 1) < first) return 0;
    __sync_add_and_fetch(&failed, 1);
    errno = error_number;
    return 1;
}

static int fails_in(const char *kind, int fd) {
    char name[32], path[PATH_MAX];
    if (!root[0] || strcmp(kind, call)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails(kind, path);
}

#define REAL(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)
#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define KIND(flags) (flags & O_CREAT ? "create" : "open")

int open(const char *path, int flags, ...) { MODE(flags) return fails(KIND(flags), path) ? -1 : REAL(open, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return fails(KIND(flags), path) ? -1 : REAL(open64, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return fails(KIND(flags), path) ? -1 : REAL(openat, at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return fails(KIND(flags), path) ? -1 : REAL(openat64, at, path, flags, mode); }
ssize_t write(int fd, const void *data, size_t size) { return fails_in("write", fd) ? -1 : REAL(write, fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return fails_in("write", fd) ? -1 : REAL(pwrite, fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return fails_in("write", fd) ? -1 : REAL(pwrite64, fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return fails_in("write", fd) ? -1 : REAL(writev, fd, parts, count); }
ssize_t read(int fd, void *data, size_t size) { return fails_in("read", fd) ? -1 : REAL(read, fd, data, size); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return fails_in("read", fd) ? -1 : REAL(pread, fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off_t at) { return fails_in("read", fd) ? -1 : REAL(pread64, fd, data, size, at); }
int fsync(int fd) { return fails_in("fsync", fd) ? -1 : REAL(fsync, fd); }
int fdatasync(int fd) { return fails_in("fsync", fd) ? -1 : REAL(fdatasync, fd); }
int rename(const char *from, const char *to) { return fails("rename", to) ? -1 : REAL(rename, from, to); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : REAL(mkdir, path, mode); }
int unlink(const char *path) { return fails("unlink", path) ? -1 : REAL(unlink, path); }
