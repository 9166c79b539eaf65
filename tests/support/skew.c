/* Moves the wall clock of a process: LD_PRELOAD this, and put the offset in seconds, as text, into the file that
 * SKEW_FILE names. CLOCK_MONOTONIC and all waits stay true. The file is mapped once, so asking costs no call.
 * Build: cc -shared -fPIC -O2 -o skew.so skew.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 32 }; /* bytes of the file */

static const char *shared;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SKEW_FILE");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *map = mmap(NULL, WIDTH, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shared = map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) begin(); /* another library's constructor came first */
    int failed = real(clock, now);
    if (!failed && shared && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += strtol(shared, NULL, 10);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (seconds) *seconds = exact.tv_sec;
    return exact.tv_sec;
}
