/* Uses a native model as a program in C does that is never ended, and says what that takes.
 *
 *   _native_driver FOLDER CASES calls THREADS COUNT   so many calls, from threads that share them
 *   _native_driver FOLDER CASES loads 1 COUNT         loads and unloads the library, with a call now and then
 *
 * CASES is a file: for each case and each size the inputs, and then the outputs that are right. One call in three gives
 * arrays that are copied. The last line is a JSON document: the wrong calls, and what the process has after a tenth of
 * the work and at the end. If a call is wrong or fails, the exit code is 1.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stormdrop.h"

enum { ALIGNMENT = 64, OFFSET = 8, CALL_EVERY = 100, SETTLED = 300000 /* microseconds */ };

typedef struct {
  long resident, threads, files, mappings; /* The first in kilobytes; all 0 where there is no /proc. */
} state;

typedef struct {
  void *library;
  stormdrop_model *model;
  __typeof__(stormdrop_open) *open;
  __typeof__(stormdrop_close) *close;
  __typeof__(stormdrop_error) *error;
  __typeof__(stormdrop_sizes) *sizes;
  __typeof__(stormdrop_inputs) *inputs;
  __typeof__(stormdrop_outputs) *outputs;
  __typeof__(stormdrop_input) *input;
  __typeof__(stormdrop_output) *output;
  __typeof__(stormdrop_run) *run;
} loaded;

static const char *folder, *cases;
static size_t case_bytes;
static long count;
static state early, late;
static loaded shared;
static _Atomic long begun, wrong;

static void read_cases(const char *path);
static loaded load(void);
static void unload(loaded *here);
static bool call_is_right(const loaded *here, long number);
static void run_threads(int threads, long calls);
static void *call_again(void *calls);
static void load_again(void);
static state state_now(void);
static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

int main(int arguments, char **argument) {
  if (arguments != 6) fail("usage: %s FOLDER CASES calls|loads THREADS COUNT", argument[0]);
  folder = argument[1];
  read_cases(argument[2]);
  const int threads = atoi(argument[4]);
  count = atol(argument[5]);
  mallopt(M_MMAP_THRESHOLD, 1 << 16); /* So that large blocks which are free are not resident. */
  if (!strcmp(argument[3], "loads")) {
    load_again();
  } else {
    shared = load();
    run_threads(threads, count / 10);
    early = state_now();
    run_threads(threads, count);
    late = state_now();
    unload(&shared);
  }
  printf("{\"wrong\": %ld, \"resident\": [%ld, %ld], \"threads\": [%ld, %ld], ", wrong, early.resident, late.resident,
         early.threads, late.threads);
  printf("\"files\": [%ld, %ld], \"mappings\": [%ld, %ld]}\n", early.files, late.files, early.mappings, late.mappings);
  free((void *)cases);
  return wrong != 0;
}

/* Calls the model until it has been called so often, by threads of this phase. */
static void run_threads(int threads, long calls) {
  pthread_t *thread = calloc((size_t)threads, sizeof *thread);
  for (int i = 0; i < threads; i++) {
    if (pthread_create(thread + i, NULL, call_again, &calls)) fail("a thread cannot be made");
  }
  for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
  free(thread);
}

static void *call_again(void *calls) {
  for (long number = begun; number < *(long *)calls; number = begun) {
    if (atomic_compare_exchange_strong(&begun, &number, number + 1)) wrong += !call_is_right(&shared, number);
  }
  return NULL;
}

static void load_again(void) {
  for (long number = 0; number < count; number++) {
    loaded here = load();
    if (number % CALL_EVERY == 0) wrong += !call_is_right(&here, number / CALL_EVERY);
    unload(&here);
    if (number == count / 10) early = state_now();
  }
  late = state_now();
}

static loaded load(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/model.so", folder);
  loaded here = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
  if (!here.library) fail("%s", dlerror());
#define FIND(name) \
  if (!(*(void **)&here.name = dlsym(here.library, "stormdrop_" #name))) fail("%s", dlerror())
  FIND(open);
  FIND(close);
  FIND(error);
  FIND(sizes);
  FIND(inputs);
  FIND(outputs);
  FIND(input);
  FIND(output);
  FIND(run);
  here.model = here.open(folder, NULL);
  if (!here.model) fail("%s", here.error());
  return here;
}

static void unload(loaded *here) {
  here->close(here->model);
  dlclose(here->library);
}

static void *memory_for(uint64_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, ALIGNMENT, bytes + OFFSET)) fail("no memory");
  return memory;
}

static bool call_is_right(const loaded *here, long number) {
  const int inputs = here->inputs(here->model), outputs = here->outputs(here->model);
  const int sizes = here->sizes(here->model), size = (int)(number % sizes);
  const size_t offset = number % 3 == 2 ? OFFSET : 0;
  size_t bytes_of_all = 0, begin = 0;
  for (int each = 0; each < sizes; each++) {
    if (each == size) begin = bytes_of_all;
    for (int i = 0; i < inputs; i++) bytes_of_all += here->input(here->model, each, i)->bytes;
    for (int i = 0; i < outputs; i++) bytes_of_all += here->output(here->model, each, i)->bytes;
  }
  if (!bytes_of_all || case_bytes % bytes_of_all || !case_bytes) fail("the cases are those of another model");
  const char *given = cases + begin + bytes_of_all * ((size_t)(number / sizes) % (case_bytes / bytes_of_all));
  void *memory[inputs + outputs + 1];
  const void *in[inputs + 1];
  void *out[outputs + 1];
  for (int i = 0; i < inputs; i++) {
    const uint64_t bytes = here->input(here->model, size, i)->bytes;
    memory[i] = memory_for(bytes);
    in[i] = memcpy((char *)memory[i] + offset, given, bytes);
    given += bytes;
  }
  for (int i = 0; i < outputs; i++) {
    const uint64_t bytes = here->output(here->model, size, i)->bytes;
    memory[inputs + i] = memory_for(bytes);
    out[i] = memset((char *)memory[inputs + i] + offset, 0xa5, bytes);
  }
  if (here->run(here->model, size, in, out, NULL)) fail("%s", here->error());
  bool right = true;
  for (int i = 0; i < outputs; i++) {
    const uint64_t bytes = here->output(here->model, size, i)->bytes;
    right = !memcmp(out[i], given, bytes) && right;
    given += bytes;
  }
  for (int i = 0; i < inputs + outputs; i++) free(memory[i]);
  return right;
}

static void read_cases(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail("%s cannot be read", path);
  case_bytes = (size_t)ftell(file);
  rewind(file);
  char *memory = memory_for(case_bytes);
  if (fread(memory, 1, case_bytes, file) != case_bytes) fail("%s cannot be read", path);
  fclose(file);
  cases = memory;
}

/* What this process has. */

static long entries_of(const char *path) {
  DIR *of = opendir(path);
  long entries = 0;
  if (!of) return 0;
  while (readdir(of)) entries++;
  closedir(of);
  return entries - 3; /* ".", "..", and in /proc/self/fd the folder itself. */
}

static state state_now(void) {
  usleep(SETTLED); /* A thread that was joined stays in /proc for a moment. */
  state now = {.threads = entries_of("/proc/self/task") + 1, .files = entries_of("/proc/self/fd")};
  char line[512];
  FILE *file = fopen("/proc/self/maps", "re");
  while (file && fgets(line, sizeof line, file)) now.mappings++;
  if (file) fclose(file);
  file = fopen("/proc/self/smaps_rollup", "re");
  while (file && fgets(line, sizeof line, file) && sscanf(line, "Rss: %ld", &now.resident) != 1) {
  }
  if (file) fclose(file);
  return now;
}

static void fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vfprintf(stderr, format, values);
  va_end(values);
  fputc('\n', stderr);
  exit(1);
}
