/* What the files of the runtime share: the tables of a program, and what kernels expect of their surroundings. */
#ifndef STORMDROP_PROGRAM_H
#define STORMDROP_PROGRAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stormdrop.h"

#define SD_ALIGNMENT 64 /* Kernels read and write tensors that begin at a multiple of so many bytes. */

/* The ABI of kernels: DLPack's DLTensor and TVM's TVMFFIAny. */
typedef struct {
  void *data;
  int32_t device, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t offset;
} sd_dl_tensor;

typedef struct {
  int32_t type;
  uint32_t zero;
  union {
    int64_t integer;
    void *pointer;
  } value;
} sd_any;

enum { SD_CPU = 1, SD_TYPE_DL_TENSOR = 7 };

typedef int (*sd_kernel)(void *self, const sd_any *arguments, int32_t count, sd_any *result);

/* The tables that model.c holds. */
enum { SD_INPUT, SD_OUTPUT, SD_STORAGE, SD_CONSTANT };
enum { SD_KERNEL, SD_PART, SD_COPY };

typedef struct {
  stormdrop_tensor tensor;
  const int64_t *strides;
  uint64_t offset;  /* From the beginning of its memory, in bytes; of all constants if it is one. */
  int32_t index;    /* Which input, output or block of storage. */
  uint8_t memory, code, bits;
} sd_view;

typedef struct {
  const char *name;
  sd_kernel kernel;
  const int32_t *arguments; /* Views: first those that are read. */
  int32_t reads, writes, part;
  uint8_t kind;
} sd_step;

typedef struct {
  const stormdrop_tensor *inputs, *outputs;
  const uint64_t *storage; /* Where each block begins. */
  uint64_t storage_bytes;
  const sd_view *views;
  const int32_t *callers; /* The views of inputs and outputs, and -1. */
  const sd_step *steps;
  int32_t view_count, step_count, argument_count;
} sd_size;

#define SD_PIECE (1 << 20) /* Bytes of constants that have a digest of their own: several threads check them. */

typedef struct {
  const char *name;
  const sd_size *sizes;
  const uint8_t *alignments; /* Where each input has to begin: at a multiple of so many bytes. */
  int32_t size_count, listed_count, input_count, output_count;
  bool parts, keep_denormals;
  bool needs_tvm; /* A kernel calls a function of TVM. */
  uint64_t constants_bytes;
  const char *const *constants_digests; /* SHA-256 of each SD_PIECE bytes of them, in hexadecimal digits. */
  const char *const *features;        /* LLVM's names of instruction set extensions, and NULL. */
  const char *const *units;           /* Those of them that the system has to permit, and NULL. */
} sd_program;

extern const sd_program sd_the_program;

/* kernel_calls.c: what went wrong in this thread. */
void sd_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* checks.c: each says whether all is well, and fails otherwise. */
bool sd_check_features(const char *const *features);
bool sd_permit_units(const char *const *units);
void sd_sha256(const void *data, uint64_t bytes, char digest[65]);

/* cores.c */
int sd_usable_cores(void);

/* pool.c: threads and cores, which several models may share. */

/* Memory of a thread for kernels that ask for some: what was allocated last is freed first. */
typedef struct sd_chunk sd_chunk;
typedef struct {
  sd_chunk *chunk;
} sd_stack;

typedef struct sd_team sd_team;

/* What each of the threads of a launch does: `lane` is from 0 to `lanes` - 1. */
typedef void (*sd_work)(void *job, int lane, int lanes, sd_stack *stack);

/* A pool is used by way of the functions of the library that made it. Their order and types do not change. */
struct stormdrop_pool {
  uint32_t interface;
  int32_t cores;
  void (*retain)(stormdrop_pool *pool);
  void (*release)(stormdrop_pool *pool);
  /* The threads of a call, at most so many; waits until one is free. NULL on an error, which `why` says. */
  sd_team *(*begin)(stormdrop_pool *pool, int most, const char **why);
  void (*end)(stormdrop_pool *pool, sd_team *team);
  /* Runs `work` in all threads of a team, and waits for them. */
  void (*launch)(sd_team *team, sd_work work, void *job);
  int (*lanes)(const sd_team *team);
  sd_stack *(*stack)(sd_team *team); /* Of the calling thread. */
};

stormdrop_pool *sd_pool(void); /* That of this library, retained; NULL without memory. */

/* kernel_calls.c: what kernels ask for, by the thread that they run in. */
typedef struct {
  sd_team *team;              /* NULL in a thread that may not launch others. */
  const stormdrop_pool *pool;
  sd_stack *stack;
} sd_lane;

sd_lane sd_enter(sd_lane lane); /* Makes it that of the calling thread. Returns the one before. */
void sd_free_stack(sd_stack *stack);

/* The mode for denormals of the calling thread: returns the one before. */
static inline uint64_t sd_mode(void) {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

static inline void sd_set_mode(uint64_t mode) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr((unsigned)mode);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

static inline uint64_t sd_change_mode(bool keep_denormals) {
#if defined(__x86_64__)
  const uint64_t bits = 0x8040; /* Results become zero (FTZ), operands count as zero (DAZ). */
#elif defined(__aarch64__)
  const uint64_t bits = 1 << 24; /* Both (FZ). */
#else
  const uint64_t bits = 0;
#endif
  uint64_t before = sd_mode(), mode = keep_denormals ? before & ~bits : before | bits;
  if (mode != before) sd_set_mode(mode);
  return before;
}

static inline void sd_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

#endif
