/* What kernels ask of their surroundings, by the names that TVM's code has for it: threads, memory, errors. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

static _Thread_local char error[512];
static _Thread_local sd_lane lane_here;

/* Errors. */

const char *stormdrop_error(void) { return error; }

void sd_fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error, sizeof error, format, values);
  va_end(values);
  for (char *each = error; *each; each++) {
    if ((unsigned char)*each < ' ') *each = ' '; /* It is one line. */
  }
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) { sd_fail("%s: %s", kind, message); }

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  char text[400];
  size_t used = 0;
  text[0] = 0;
  for (int32_t i = 0; i < count && used < sizeof text - 1; i++) {
    if (!parts[i]) continue;
    int more = snprintf(text + used, sizeof text - used, "%s", parts[i]);
    if (more > 0) used += (size_t)more;
  }
  sd_fail("%s: %s", kind, text);
}

/* Threads. */

typedef struct {
  void *sync_handle;
  int32_t num_task;
} group; /* TVMParallelGroupEnv */

typedef int (*task)(int id, group *of, void *data);

typedef struct {
  _Atomic uint32_t arrived, round;
} barrier;

typedef struct {
  task function;
  void *data;
  group of;
  barrier barrier;
  uint64_t mode;
  _Atomic int failed;
  char why[sizeof error];
} launched;

sd_lane sd_enter(sd_lane lane) {
  sd_lane before = lane_here;
  lane_here = lane;
  return before;
}

static void run_tasks(void *argument, int lane, int lanes, sd_stack *stack) {
  launched *job = argument;
  sd_lane outer = sd_enter((sd_lane){NULL, NULL, stack});
  const uint64_t mode = sd_mode();
  if (mode != job->mode) sd_set_mode(job->mode);
  for (int id = lane; id < job->of.num_task; id += lanes) {
    if (!job->function(id, &job->of, job->data)) continue;
    if (!atomic_exchange(&job->failed, 1)) memcpy(job->why, error, sizeof error);
    break;
  }
  if (mode != job->mode) sd_set_mode(mode);
  sd_enter(outer);
}

static int parallel_launch(task function, void *data, int32_t tasks) {
  sd_lane here = lane_here;
  launched job = {.function = function, .data = data, .mode = sd_mode()};
  job.of.sync_handle = &job.barrier;
  const int lanes = here.team ? here.pool->lanes(here.team) : 1;
  job.of.num_task = tasks > 0 ? tasks : lanes;
  if (lanes == 1 || job.of.num_task == 1) {
    run_tasks(&job, 0, 1, here.stack);
  } else {
    here.pool->launch(here.team, run_tasks, &job);
  }
  if (!atomic_load(&job.failed)) return 0;
  memcpy(error, job.why, sizeof error);
  return -1;
}

/* As with TVM's own threads, tasks wait for each other only if there is a thread for each. */
static int parallel_barrier(int32_t id, group *of) {
  barrier *here = of->sync_handle;
  (void)id;
  const uint32_t round = atomic_load(&here->round);
  if (atomic_fetch_add(&here->arrived, 1) + 1 == (uint32_t)of->num_task) {
    atomic_store(&here->arrived, 0);
    atomic_fetch_add(&here->round, 1);
  } else {
    while (atomic_load_explicit(&here->round, memory_order_acquire) == round) sd_pause();
  }
  return 0;
}

/* Memory. */

struct sd_chunk {
  sd_chunk *below;
  size_t bytes, used;
  size_t last; /* Where the header of the last allocation stands. */
};

typedef struct {
  size_t last, used; /* What the chunk's were before. */
} header;

enum { FIRST_BYTES = 1 << 16, HEADER = SD_ALIGNMENT };

static sd_chunk *more_memory(sd_stack *stack, size_t bytes) {
  size_t size = stack->chunk ? 2 * stack->chunk->bytes : FIRST_BYTES;
  if (stack->chunk && !stack->chunk->used) { /* A larger one replaces an empty one. */
    sd_chunk *empty = stack->chunk;
    stack->chunk = empty->below;
    free(empty);
  }
  while (size < bytes) size *= 2;
  void *memory;
  if (posix_memalign(&memory, SD_ALIGNMENT, HEADER + size)) return NULL;
  sd_chunk *made = memory;
  *made = (sd_chunk){.below = stack->chunk, .bytes = size};
  return stack->chunk = made;
}

static void *allocate(int32_t device, int32_t device_id, uint64_t bytes, int32_t code, int32_t bits) {
  (void)device, (void)device_id, (void)code, (void)bits;
  sd_stack *stack = lane_here.stack;
  const size_t wanted = HEADER + (bytes + SD_ALIGNMENT - 1) / SD_ALIGNMENT * SD_ALIGNMENT;
  if (!stack || wanted < bytes) return NULL;
  sd_chunk *chunk = stack->chunk;
  if (!chunk || chunk->bytes - chunk->used < wanted) chunk = more_memory(stack, wanted);
  if (!chunk) {
    sd_fail("no memory for a workspace of %llu bytes", (unsigned long long)bytes);
    return NULL;
  }
  char *place = (char *)chunk + HEADER + chunk->used;
  *(header *)place = (header){chunk->last, chunk->used};
  chunk->last = chunk->used;
  chunk->used += wanted;
  return place + HEADER;
}

static int release(int32_t device, int32_t device_id, void *memory) {
  (void)device, (void)device_id;
  sd_stack *stack = lane_here.stack;
  sd_chunk *top = stack ? stack->chunk : NULL, *chunk = top && !top->used && top->below ? top->below : top;
  if (!chunk || !chunk->used || (char *)memory != (char *)chunk + HEADER + chunk->last + HEADER) {
    sd_fail("a kernel frees memory in another order than it was allocated in");
    return -1;
  }
  const header *of = (header *)((char *)memory - HEADER);
  chunk->used = of->used;
  chunk->last = of->last;
  if (chunk != top && !chunk->used) { /* The one above is larger, and stays for the next kernel. */
    top->below = chunk->below;
    free(chunk);
  }
  return 0;
}

void sd_free_stack(sd_stack *stack) {
  while (stack->chunk) {
    sd_chunk *chunk = stack->chunk;
    stack->chunk = chunk->below;
    free(chunk);
  }
}

/* No kernel that stormdrop makes calls a function of TVM by its name. One that did would find this one. */
static int not_there(void) {
  sd_fail("it calls a function of TVM, and there is none");
  return -1;
}

/* Where kernels look these functions up. Their objects have places of the same names, which count less. */
void *__TVMBackendParallelLaunch = (void *)parallel_launch;
void *__TVMBackendParallelBarrier = (void *)parallel_barrier;
void *__TVMBackendAllocWorkspace = (void *)allocate;
void *__TVMBackendFreeWorkspace = (void *)release;
void *__TVMFFIFunctionCall = (void *)not_there;
void *__TVMFFIEnvModLookupFromImports = (void *)not_there;
void *__TVMFFIHandleInitOnce = (void *)not_there;
void *__TVMFFIErrorSetRaisedFromCStr = (void *)TVMFFIErrorSetRaisedFromCStr;
void *__TVMFFIErrorSetRaisedFromCStrParts = (void *)TVMFFIErrorSetRaisedFromCStrParts;
