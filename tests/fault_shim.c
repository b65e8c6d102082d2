/* Counts the system calls that change files below FAULT_DIR; at call number FAULT_AT it fails with ENOSPC, or kills
   the process. Loaded with LD_PRELOAD; FAULT_LOG gets one byte for each call, so that a clean run can be counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long calls;

static int below(const char *path) {
    const char *folder = getenv("FAULT_DIR");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return below(path);
}

/* 1 if this call is to fail. */
static int fault(void) {
    const char *at = getenv("FAULT_AT"), *kills = getenv("FAULT_KILL");
    long number = ++calls;
    if (!at || number != atol(at)) return 0;
    if (kills && *kills == '1') kill(getpid(), SIGKILL);
    errno = ENOSPC;
    return 1;
}

__attribute__((destructor)) static void report(void) {
    const char *log = getenv("FAULT_LOG");
    if (!log) return;
    FILE *file = fopen(log, "w");
    if (file) { fprintf(file, "%ld", calls); fclose(file); }
}

#define REAL(name) real = real ? real : dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t n) {
    static ssize_t (*real)(int, const void *, size_t);
    REAL("write");
    if (fd_below(fd) && fault()) return -1;
    return real(fd, data, n);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    REAL("pwrite");
    if (fd_below(fd) && fault()) return -1;
    return real(fd, data, n, at);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    REAL("pwrite64");
    if (fd_below(fd) && fault()) return -1;
    return real(fd, data, n, at);
}
int fsync(int fd) {
    static int (*real)(int);
    REAL("fsync");
    if (fd_below(fd) && fault()) return -1;
    return real(fd);
}
int fdatasync(int fd) {
    static int (*real)(int);
    REAL("fdatasync");
    if (fd_below(fd) && fault()) return -1;
    return real(fd);
}
int ftruncate(int fd, off_t n) {
    static int (*real)(int, off_t);
    REAL("ftruncate");
    if (fd_below(fd) && fault()) return -1;
    return real(fd, n);
}
int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    REAL("rename");
    if (below(from) && fault()) return -1;
    return real(from, to);
}
