// A plugin for QEMU: adds up the executed instructions in a file of eight bytes, which the emulated program can read.
//
// Debian's QEMU takes plugins but comes without their header, so that the few functions are declared here, as QEMU 7
// documents them. The addition is not atomic: the emulated program should have one thread that computes.
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct qemu_plugin_tb;
typedef void (*translated_block)(uint64_t id, struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated_block callback);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int operation, void *value, uint64_t by);

int qemu_plugin_version = 1;

static const int add = 0; // QEMU_PLUGIN_INLINE_ADD_U64
static uint64_t *executed;

static void count_block(uint64_t id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, add, executed, qemu_plugin_tb_n_insns(block));
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    const char *path = getenv("BOARD_COUNT");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof *executed)) return 1;
    executed = mmap(NULL, sizeof *executed, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (executed == MAP_FAILED) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, count_block);
    return 0;
}
