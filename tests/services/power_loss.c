/* Preloaded into a process, keeps what it makes durable below one directory.
 *
 * In front of each fsync the file's bytes, or the directory's entries, are copied to a numbered file beside
 * the log "events"; each line there is an event that has happened: F inode path, D inode path, U 0 path (an
 * unlink). After a chosen one the process dies by SIGKILL. Whatever was copied stays open, so that no
 * later file gets the inode number of an earlier one.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_INODES = 65536, BLOCK = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], target[PATH_MAX], doomed[PATH_MAX];
static FILE *events;
static long count, last;
static ino_t inodes[MOST_INODES];
static int descriptors[MOST_INODES], known;

static void fail(const char *what) {
    perror(what);
    abort();
}

/* From now on; the process dies right after it has unlinked a path, or after an event number, counted from 0. */
void power_loss_record(const char *below, const char *into, const char *unlinked, long number) {
    char path[PATH_MAX + 16];
    snprintf(root, sizeof root, "%s", below);
    snprintf(target, sizeof target, "%s", into);
    snprintf(path, sizeof path, "%s/events", into);
    snprintf(doomed, sizeof doomed, "%s", unlinked);
    last = number;
    if (!(events = fopen(path, "we"))) fail(path);
}

static int inside(const char *path) {
    size_t size = strlen(root);
    return events && strncmp(path, root, size) == 0 && (path[size] == '/' || !path[size]);
}

static void happened(char kind, ino_t inode, const char *path) {
    fprintf(events, "%c %lu %s\n", kind, (unsigned long)inode, path);
    fflush(events);
    if (count++ == last || (kind == 'U' && !strcmp(path, doomed))) kill(getpid(), SIGKILL);
}

static int pinned(ino_t inode, const char *path) {
    for (int i = 0; i < known; i++)
        if (inodes[i] == inode) return descriptors[i];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || known == MOST_INODES) fail(path);
    inodes[known] = inode;
    return descriptors[known++] = fd;
}

static void copy_file(int from, FILE *to) {
    char block[BLOCK];
    ssize_t size;
    for (off_t at = 0; (size = pread(from, block, sizeof block, at)) > 0; at += size)
        if (fwrite(block, 1, (size_t)size, to) != (size_t)size) fail("copy");
    if (size < 0) fail("read");
}

static void copy_entries(const char *path, FILE *to) {
    char entry[PATH_MAX * 2];
    struct stat found;
    struct dirent *next;
    DIR *directory = opendir(path);
    if (!directory) fail(path);
    while ((next = readdir(directory))) {
        if (!strcmp(next->d_name, ".") || !strcmp(next->d_name, "..")) continue;
        snprintf(entry, sizeof entry, "%s/%s", path, next->d_name);
        if (lstat(entry, &found)) continue; /* removed by another thread meanwhile */
        if (S_ISREG(found.st_mode)) pinned(found.st_ino, entry);
        fprintf(to, "%lu %s\n", (unsigned long)found.st_ino, next->d_name);
    }
    closedir(directory);
}

static int synced(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    char link[64], path[PATH_MAX] = "", copy[PATH_MAX + 32];
    struct stat found;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!events || readlink(link, path, sizeof path - 1) < 0 || !inside(path)) return real(fd);
    pthread_mutex_lock(&lock);
    snprintf(copy, sizeof copy, "%s/%ld", target, count);
    FILE *to = fopen(copy, "we");
    if (!to || fstat(fd, &found)) fail(copy);
    if (S_ISDIR(found.st_mode)) copy_entries(path, to);
    else copy_file(pinned(found.st_ino, link), to);
    /* a file that comes back has the age that it had */
    struct timespec times[2] = {found.st_atim, found.st_mtim};
    if (fflush(to) || futimens(fileno(to), times) || fclose(to)) fail(copy);
    int result = real(fd);
    if (!result) happened(S_ISDIR(found.st_mode) ? 'D' : 'F', found.st_ino, path);
    pthread_mutex_unlock(&lock);
    return result;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

int unlink(const char *path) {
    int (*real)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    if (!inside(path)) return real(path);
    pthread_mutex_lock(&lock);
    int result = real(path);
    if (!result) happened('U', 0, path);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlinkat(int directory, const char *name, int flags) {
    int (*real)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    char link[64], path[PATH_MAX * 2] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    if (!events || readlink(link, path, PATH_MAX - 1) < 0 || !inside(path)) return real(directory, name, flags);
    snprintf(path + strlen(path), PATH_MAX, "/%s", name);
    pthread_mutex_lock(&lock);
    int result = real(directory, name, flags);
    if (!result) happened('U', 0, path);
    pthread_mutex_unlock(&lock);
    return result;
}
