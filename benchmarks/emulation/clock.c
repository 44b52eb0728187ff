// Preloaded on the board: the clocks of C++, by which TVM times kernels, tell the instructions that count.c has counted.
//
// One instruction is told as 128 ns. QEMU needs less than that for one, so that the board's clock is not far behind the
// real one. Whoever measures repeats a kernel until a sample is long enough by the board's clock, and is patient by the
// real one. Python has clocks of its own, on which time-outs depend: they stay as they are.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static const int64_t nanoseconds = 128;

static int64_t now(void) {
    static volatile int64_t *executed;
    if (!executed) {
        const char *path = getenv("BOARD_COUNT");
        int file = path ? open(path, O_RDONLY) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof *executed, PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) abort();
        executed = mapped;
    }
    return *executed * nanoseconds;
}

int64_t _ZNSt6chrono3_V212system_clock3nowEv(void) { return now(); }
int64_t _ZNSt6chrono3_V212steady_clock3nowEv(void) { return now(); }
