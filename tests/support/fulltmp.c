/* Makes the directory for temporary files of a database server full: LD_PRELOAD this. The file that FULLTMP_FILE
 * names holds two 64-bit numbers: whether the directory is full (written by the test, obeyed at once), and how
 * many writes were refused. All files in FULLTMP_DIR are concerned, also those that have no name.
 * Build: cc -shared -fPIC -O2 -o fulltmp.so fulltmp.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct shared {
    volatile int64_t full;
    int64_t refused;
};

static struct shared *shared;
static const char *directory;
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FULLTMP_FILE");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    real_write = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_pwrite = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    directory = getenv("FULLTMP_DIR");
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shared = map;
}

static int refused(int file) {
    char link[64], path[4096];
    if (!shared || !shared->full || !directory) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    size_t prefix = strlen(directory);
    if (strncmp(path, directory, prefix) || path[prefix] != '/') return 0;
    __atomic_add_fetch(&shared->refused, 1, __ATOMIC_SEQ_CST);
    errno = ENOSPC;
    return 1;
}

ssize_t write(int file, const void *data, size_t count) { return refused(file) ? -1 : real_write(file, data, count); }

ssize_t pwrite64(int file, const void *data, size_t count, off_t offset) {
    return refused(file) ? -1 : real_pwrite(file, data, count, offset);
}

ssize_t pwrite(int file, const void *data, size_t count, off_t offset) {
    return refused(file) ? -1 : real_pwrite(file, data, count, offset);
}
