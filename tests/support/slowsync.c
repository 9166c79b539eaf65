/* Makes the redo log of a database server slow to reach the disk: LD_PRELOAD this. The file that SLOWSYNC_FILE
 * names holds three 64-bit numbers: how many milliseconds an fsync of a log takes longer (written by the test,
 * obeyed at once), in which thread alone (0: in all), and how many threads are in such an fsync now. Other files
 * are synced as usual.
 * MySQL has a thread that writes its redo log to the file at once, where it outlives a kill of the server; so this
 * write is what takes longer there.
 * Build: cc -shared -fPIC -O2 -o slowsync.so slowsync.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

struct shared {
    volatile int64_t delay_ms;
    volatile int64_t thread;
    int64_t inside;
};

static struct shared *shared;
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SLOWSYNC_FILE");
    int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    real_pwrite = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shared = map;
}

static int is_file(int file, int (*matches)(const char *)) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    return name && matches(name);
}

static int is_redo_of_mysql(const char *name) { return !strncmp(name, "/#ib_redo", 9); }

static int is_log(const char *name) {
    /* InnoDB's redo log of MariaDB; binary logs of MariaDB, of MySQL; InnoDB's redo log of MySQL */
    return !strncmp(name, "/ib_logfile", 11) || strstr(name, "-bin.") || !strncmp(name, "/binlog.", 8) ||
           is_redo_of_mysql(name);
}

static void wait_if_slow(int file, int (*matches)(const char *)) {
    if (!shared || !shared->delay_ms || !is_file(file, matches)) return;
    if (shared->thread && shared->thread != gettid()) return;
    __atomic_add_fetch(&shared->inside, 1, __ATOMIC_SEQ_CST);
    for (int64_t waited = 0; waited < shared->delay_ms; waited++) usleep(1000);
    __atomic_sub_fetch(&shared->inside, 1, __ATOMIC_SEQ_CST);
}

static int slowed(int (*real)(int), int file) {
    int result = real(file);
    wait_if_slow(file, is_log);
    return result;
}

int fsync(int file) { return slowed(real_fsync, file); }

int fdatasync(int file) { return slowed(real_fdatasync, file); }

ssize_t pwrite64(int file, const void *data, size_t count, off_t offset) {
    wait_if_slow(file, is_redo_of_mysql);
    return real_pwrite(file, data, count, offset);
}

ssize_t pwrite(int file, const void *data, size_t count, off_t offset) { return pwrite64(file, data, count, offset); }
