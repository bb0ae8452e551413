/* Preloaded into processes, lets days pass for all of them at once: for the clock, for the time since the
 * machine was started, and for the times of files, which the kernel goes on to write by its own clock.
 *
 * A file that all of them map names moments of the kernel's clock, and by how much time is ahead from each of
 * them on. So what was written on a day keeps the times of that day. CLOCK_REALTIME_COARSE stays the kernel's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MOST_MOVES = 4095, SECOND = 1000000000 };
static const struct { int64_t count, unused, moves[MOST_MOVES][2]; } *map;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MOVED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof *map, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) map = at;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int64_t ns_of(struct timespec at) { return at.tv_sec * (int64_t)SECOND + at.tv_nsec; }
static struct timespec spec_of(int64_t ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }

static int64_t ahead(int64_t kernel_ns) {
    int64_t ns = 0;
    for (int64_t i = 0; map && i < map->count && map->moves[i][0] < kernel_ns; i++) ns = map->moves[i][1];
    return ns;
}

static void forward(struct timespec *at) {
    int64_t ns = ns_of(*at);
    *at = spec_of(ns + ahead(ns));
}

/* Of a time that no day had, the last one before it. */
static struct timespec backward(struct timespec at) {
    int64_t ns = ns_of(at), best = ns;
    for (int64_t i = 0; map && i < map->count; i++) {
        int64_t begin = map->moves[i][0], before = i ? map->moves[i - 1][1] : 0;
        if (ns <= begin + before) break;
        best = ns > begin + map->moves[i][1] ? ns - map->moves[i][1] : begin;
    }
    return spec_of(best);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int failed = real(which, now);
    if (failed) return failed;
    if (which == CLOCK_REALTIME) forward(now);
    if (which == CLOCK_BOOTTIME) *now = spec_of(ns_of(*now) + ahead(INT64_MAX));
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec spec;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &spec)) return -1;
    *now = (struct timeval){spec.tv_sec, spec.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

#define MOVED(file) (forward(&(file)->st_atim), forward(&(file)->st_mtim), forward(&(file)->st_ctim))
#define STAT(name, params, ...)                                                                         \
    int name params {                                                                                         \
        static int (*real) params;                                                                            \
        if (!real) real = (int(*) params)dlsym(RTLD_NEXT, #name);                                             \
        int failed = real(__VA_ARGS__);                                                                       \
        if (!failed) MOVED((struct stat *)file);                                                              \
        return failed;                                                                                        \
    }
#define STATS(suffix)                                                                                         \
    STAT(stat##suffix, (const char *restrict path, struct stat##suffix *restrict file), path, file)         \
    STAT(lstat##suffix, (const char *restrict path, struct stat##suffix *restrict file), path, file)        \
    STAT(fstat##suffix, (int fd, struct stat##suffix *file), fd, file)                                      \
    STAT(fstatat##suffix,                                                                                     \
         (int fd, const char *restrict path, struct stat##suffix *restrict file, int flags), fd, path, file,  \
         flags)                                                                                               \
    STAT(__xstat##suffix, (int version, const char *path, struct stat##suffix *file), version, path, file)  \
    STAT(__lxstat##suffix, (int version, const char *path, struct stat##suffix *file), version, path, file) \
    STAT(__fxstat##suffix, (int version, int fd, struct stat##suffix *file), version, fd, file)             \
    STAT(__fxstatat##suffix, (int version, int fd, const char *path, struct stat##suffix *file, int flags), \
         version, fd, path, file, flags)
STATS()
STATS(64)

static void forward_x(struct statx_timestamp *at) {
    struct timespec spec = {at->tv_sec, at->tv_nsec};
    forward(&spec);
    at->tv_sec = spec.tv_sec, at->tv_nsec = (uint32_t)spec.tv_nsec;
}

int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict file) {
    int failed = REAL(statx)(fd, path, flags, mask, file);
    if (!failed) forward_x(&file->stx_atime), forward_x(&file->stx_mtime), forward_x(&file->stx_ctime);
    return failed;
}

static const struct timespec *both(const struct timespec given[2], struct timespec moved[2]) {
    for (int i = 0; given && i < 2; i++) {
        int is_time = given[i].tv_nsec != UTIME_NOW && given[i].tv_nsec != UTIME_OMIT;
        moved[i] = is_time ? backward(given[i]) : given[i];
    }
    return given ? moved : NULL;
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags) {
    struct timespec moved[2];
    return REAL(utimensat)(fd, path, both(times, moved), flags);
}

int futimens(int fd, const struct timespec times[2]) {
    struct timespec moved[2];
    return REAL(futimens)(fd, both(times, moved));
}

/* Deadlines by the clock; one that is near the machine's start is of another clock. */
static struct timespec deadline(const struct timespec *at) {
    return at->tv_sec > SECOND ? spec_of(ns_of(*at) - ahead(INT64_MAX)) : *at;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec moved = deadline(until);
    return REAL(sem_timedwait)(semaphore, &moved);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict until) {
    struct timespec moved = deadline(until);
    return REAL(pthread_cond_timedwait)(condition, lock, &moved);
}
