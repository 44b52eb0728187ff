/* Opens a model and executes its program: calls of kernels with arguments that were prepared before. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

/* The memory of one call at one size, with the arguments of its kernels. It is kept for the next call. */
typedef struct execution {
  struct execution *next;
  char *memory;          /* Storage. */
  sd_dl_tensor *tensors; /* One for each view. */
  sd_any *arguments;     /* Those of all steps, one after the other. */
  void **copies;         /* Memory for inputs and outputs that cannot be used in place; made when it is needed. */
} execution;

struct stormdrop_model {
  const sd_program *program;
  char *constants;
  bool mapped;
  int32_t threads;
  stormdrop_part_function part;
  stormdrop_pool *pool;
  pthread_mutex_t lock; /* Of the lists. */
  execution **idle;     /* Of each size. */
};

static bool take_constants(stormdrop_model *model, const char *path, const stormdrop_options *options);
static bool map_constants(stormdrop_model *model, const char *path);
static bool check_digests(const stormdrop_model *model, const char *what);
static int execute(stormdrop_model *model, int32_t size, const void *const *inputs, void *const *outputs, void *call,
                   double *seconds);

uint32_t stormdrop_interface(void) { return STORMDROP_INTERFACE; }
int32_t stormdrop_needs_tvm(void) { return sd_the_program.needs_tvm; }

stormdrop_model *stormdrop_open(const char *path, const stormdrop_options *options) {
  static const stormdrop_options defaults = {.interface = STORMDROP_INTERFACE};
  const sd_program *program = &sd_the_program;
  if (!options) options = &defaults;
  if (options->interface != STORMDROP_INTERFACE) {
    sd_fail("%s: has the interface %d, and is called with %u", program->name, STORMDROP_INTERFACE, options->interface);
    return NULL;
  }
  if (program->parts && !options->part) {
    sd_fail("%s: onnxruntime has to run a part of it, which C alone cannot do", program->name);
    return NULL;
  }
  if (program->needs_tvm) {
    sd_fail("%s: a kernel calls a function of TVM, as those of TopK and of sorting do: it runs where TVM is",
            program->name);
    return NULL;
  }
  if (!sd_check_features(program->features) || !sd_permit_units(program->units)) return NULL;
  stormdrop_model *model = calloc(1, sizeof *model);
  execution **idle = calloc((size_t)program->size_count + 1, sizeof *idle);
  if (!model || !idle) {
    free(model);
    free(idle);
    sd_fail("%s: no memory", program->name);
    return NULL;
  }
  *model = (stormdrop_model){.program = program, .part = options->part, .idle = idle};
  pthread_mutex_init(&model->lock, NULL);
  if (options->pool) {
    model->pool = (stormdrop_pool *)options->pool;
    if (model->pool->interface != STORMDROP_INTERFACE) {
      sd_fail("%s: the model whose threads it is to share has another interface", program->name);
      model->pool = NULL;
      stormdrop_close(model);
      return NULL;
    }
    model->pool->retain(model->pool);
  } else if (!(model->pool = sd_pool())) {
    sd_fail("%s: no memory", program->name);
    stormdrop_close(model);
    return NULL;
  }
  int32_t cores = model->pool->cores;
  if (options->threads < 0 || options->threads > cores) {
    sd_fail("threads=%d: must be a whole number from 1 to %d, the cores of this process", options->threads, cores);
    stormdrop_close(model);
    return NULL;
  }
  model->threads = options->threads ? options->threads : cores;
  if (!take_constants(model, path, options)) {
    stormdrop_close(model);
    return NULL;
  }
  return model;
}

static void free_execution(const sd_program *program, execution *each) {
  int32_t tensors = program->input_count + program->output_count;
  for (int32_t i = 0; each->copies && i < tensors; i++) free(each->copies[i]);
  free(each->memory);
  free(each->tensors);
  free(each->arguments);
  free(each->copies);
  free(each);
}

void stormdrop_close(stormdrop_model *model) {
  if (!model) return;
  const sd_program *program = model->program;
  for (int32_t size = 0; size < program->size_count; size++) {
    while (model->idle[size]) {
      execution *each = model->idle[size];
      model->idle[size] = each->next;
      free_execution(program, each);
    }
  }
  if (model->mapped) munmap(model->constants, program->constants_bytes);
  if (model->pool) model->pool->release(model->pool);
  pthread_mutex_destroy(&model->lock);
  free(model->idle);
  free(model);
}

const char *stormdrop_name(const stormdrop_model *model) { return model->program->name; }
int32_t stormdrop_sizes(const stormdrop_model *model) { return model->program->listed_count; }
int32_t stormdrop_inputs(const stormdrop_model *model) { return model->program->input_count; }
int32_t stormdrop_outputs(const stormdrop_model *model) { return model->program->output_count; }
int32_t stormdrop_threads(const stormdrop_model *model) { return model->threads; }
const stormdrop_pool *stormdrop_pool_of(const stormdrop_model *model) { return model->pool; }

static const sd_size *size_of(const stormdrop_model *model, int32_t size) {
  return size >= 0 && size < model->program->size_count ? &model->program->sizes[size] : NULL;
}

const stormdrop_tensor *stormdrop_input(const stormdrop_model *model, int32_t size, int32_t index) {
  const sd_size *of = size_of(model, size);
  return of && index >= 0 && index < model->program->input_count ? &of->inputs[index] : NULL;
}

const stormdrop_tensor *stormdrop_output(const stormdrop_model *model, int32_t size, int32_t index) {
  const sd_size *of = size_of(model, size);
  return of && index >= 0 && index < model->program->output_count ? &of->outputs[index] : NULL;
}

int32_t stormdrop_steps(const stormdrop_model *model, int32_t size) {
  const sd_size *of = size_of(model, size);
  return of ? of->step_count : 0;
}

const char *stormdrop_step(const stormdrop_model *model, int32_t size, int32_t step) {
  const sd_size *of = size_of(model, size);
  return of && step >= 0 && step < of->step_count ? of->steps[step].name : NULL;
}

int stormdrop_run(stormdrop_model *model, int32_t size, const void *const *inputs, void *const *outputs, void *call) {
  return execute(model, size, inputs, outputs, call, NULL);
}

int stormdrop_profile(stormdrop_model *model, int32_t size, const void *const *inputs, void *const *outputs, void *call,
                      double *seconds) {
  return execute(model, size, inputs, outputs, call, seconds);
}

/* Constants. */

static bool take_constants(stormdrop_model *model, const char *path, const stormdrop_options *options) {
  const sd_program *program = model->program;
  if (!program->constants_bytes) return true;
  if (!options->constants) return map_constants(model, path);
  if (options->constants_bytes != program->constants_bytes) {
    sd_fail("%s: its constants have %llu bytes, not %llu", program->name, (unsigned long long)options->constants_bytes,
            (unsigned long long)program->constants_bytes);
    return false;
  }
  if ((uintptr_t)options->constants % SD_ALIGNMENT) {
    sd_fail("%s: its constants do not begin at a multiple of %d bytes", program->name, SD_ALIGNMENT);
    return false;
  }
  model->constants = (char *)options->constants; /* No kernel writes to them. */
  return options->unchecked || check_digests(model, program->name);
}

static bool map_constants(stormdrop_model *model, const char *path) {
  const sd_program *program = model->program;
  if (!path) {
    sd_fail("%s: needs the path of its folder, or its constants in memory", program->name);
    return false;
  }
  struct stat status;
  char inside[4096];
  if (!stat(path, &status) && S_ISDIR(status.st_mode)) {
    if (snprintf(inside, sizeof inside, "%s/weights.bin", path) >= (int)sizeof inside) {
      sd_fail("%s: its path is too long", program->name);
      return false;
    }
    path = inside;
  }
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 || fstat(file, &status)) {
    sd_fail("%s: cannot be read: %s", path, strerror(errno));
    if (file >= 0) close(file);
    return false;
  }
  if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size != program->constants_bytes) {
    sd_fail("%s: is damaged: it has %lld bytes, not %llu", path, (long long)status.st_size,
            (unsigned long long)program->constants_bytes);
    close(file);
    return false;
  }
  void *memory = mmap(NULL, program->constants_bytes, PROT_READ, MAP_PRIVATE, file, 0);
  int error = errno;
  close(file);
  if (memory == MAP_FAILED) {
    sd_fail("%s: cannot be mapped: %s", path, strerror(error));
    return false;
  }
  model->constants = memory;
  model->mapped = true;
  return check_digests(model, path);
}

typedef struct {
  const char *constants;
  const sd_program *program;
  _Atomic uint64_t next; /* The first byte that nobody checks yet. */
  _Atomic int differ;
} checked;

static void check_pieces(void *job, int lane, int lanes, sd_stack *stack) {
  checked *all = job;
  const uint64_t bytes = all->program->constants_bytes;
  (void)lane, (void)lanes, (void)stack;
  for (uint64_t begin; (begin = atomic_fetch_add(&all->next, SD_PIECE)) < bytes;) {
    char digest[65];
    sd_sha256(all->constants + begin, bytes - begin < SD_PIECE ? bytes - begin : SD_PIECE, digest);
    if (strcmp(digest, all->program->constants_digests[begin / SD_PIECE])) atomic_store(&all->differ, 1);
  }
}

static bool check_digests(const stormdrop_model *model, const char *what) {
  checked all = {.constants = model->constants, .program = model->program};
  const char *why = NULL;
  sd_team *team = model->pool->begin(model->pool, model->threads, &why);
  if (!team) {
    sd_fail("%s: %s", what, why);
    return false;
  }
  model->pool->launch(team, check_pieces, &all);
  model->pool->end(model->pool, team);
  if (atomic_load(&all.differ)) sd_fail("%s: is damaged: its checksum differs", what);
  return !atomic_load(&all.differ);
}

/* Executions. */

static void *aligned_memory(uint64_t bytes) {
  const uint64_t huge = 1 << 21;
  void *memory = NULL;
  if (posix_memalign(&memory, bytes >= huge ? huge : SD_ALIGNMENT, bytes ? bytes : 1)) return NULL;
#ifdef MADV_HUGEPAGE
  if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE); /* Fewer faults and misses; it may be refused. */
#endif
  return memory;
}

static execution *make_execution(const stormdrop_model *model, const sd_size *size) {
  const sd_program *program = model->program;
  execution *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  made->memory = aligned_memory(size->storage_bytes);
  made->tensors = calloc((size_t)size->view_count + 1, sizeof *made->tensors);
  made->arguments = calloc((size_t)size->argument_count + 1, sizeof *made->arguments);
  made->copies = calloc((size_t)(program->input_count + program->output_count) + 1, sizeof *made->copies);
  if (!made->memory || !made->tensors || !made->arguments || !made->copies) {
    free_execution(program, made);
    return NULL;
  }
  for (int32_t i = 0; i < size->view_count; i++) {
    const sd_view *view = &size->views[i];
    void *data = NULL;
    if (view->memory == SD_STORAGE) data = made->memory + size->storage[view->index] + view->offset;
    if (view->memory == SD_CONSTANT) data = model->constants + view->offset;
    made->tensors[i] = (sd_dl_tensor){
        .data = data,
        .device = SD_CPU,
        .rank = view->tensor.rank,
        .code = view->code,
        .bits = view->bits,
        .lanes = 1,
        .shape = view->tensor.shape,
        .strides = view->strides,
    };
  }
  sd_any *argument = made->arguments;
  for (int32_t i = 0; i < size->step_count; i++) {
    const sd_step *step = &size->steps[i];
    for (int32_t k = 0; k < step->reads + step->writes; k++, argument++) {
      argument->type = SD_TYPE_DL_TENSOR;
      argument->value.pointer = &made->tensors[step->arguments[k]];
    }
  }
  return made;
}

static execution *take_execution(stormdrop_model *model, int32_t size) {
  pthread_mutex_lock(&model->lock);
  execution *taken = model->idle[size];
  if (taken) model->idle[size] = taken->next;
  pthread_mutex_unlock(&model->lock);
  return taken ? taken : make_execution(model, &model->program->sizes[size]);
}

static void give_execution(stormdrop_model *model, int32_t size, execution *used) {
  pthread_mutex_lock(&model->lock);
  used->next = model->idle[size];
  model->idle[size] = used;
  pthread_mutex_unlock(&model->lock);
}

/* The memory that kernels use for an array of the caller's: the same if they can. NULL without memory. */
static char *place(execution *here, int32_t slot, const stormdrop_tensor *tensor, const void *array, int alignment) {
  if ((uintptr_t)array % (uintptr_t)alignment == 0) return (char *)array;
  if (!here->copies[slot]) here->copies[slot] = aligned_memory(tensor->bytes);
  return here->copies[slot];
}

/* Places an array of the caller's. Returns false, with an error, if there is none, or no memory. */
static bool place_array(execution *here, int32_t slot, const stormdrop_tensor *tensor, const void *array,
                        int alignment, char **data) {
  if (!array && tensor->bytes) {
    sd_fail("%s: the array of '%s' is NULL", sd_the_program.name, tensor->name);
    return false;
  }
  *data = place(here, slot, tensor, array, alignment);
  if (!*data && tensor->bytes) sd_fail("%s: no memory", sd_the_program.name);
  return *data || !tensor->bytes;
}

/* Lets the views of inputs and outputs point to the caller's memory, or to copies of it. */
static bool place_arrays(const sd_program *program, const sd_size *size, execution *here, const void *const *inputs,
                         void *const *outputs) {
  for (const int32_t *each = size->callers; *each >= 0; each++) {
    const sd_view *view = &size->views[*each];
    const int32_t index = view->index;
    char *data = NULL;
    if (view->memory == SD_INPUT) {
      const stormdrop_tensor *tensor = &size->inputs[index];
      if (!place_array(here, index, tensor, inputs[index], program->alignments[index], &data)) return false;
      if (data != inputs[index]) memcpy(data, inputs[index], tensor->bytes);
    } else {
      const stormdrop_tensor *tensor = &size->outputs[index];
      if (!place_array(here, program->input_count + index, tensor, outputs[index], SD_ALIGNMENT, &data)) return false;
    }
    here->tensors[*each].data = data ? data + view->offset : NULL;
  }
  return true;
}

static int run_part(const stormdrop_model *model, const sd_size *size, const sd_step *step, const execution *here,
                    void *call) {
  enum { MOST = 64 };
  const stormdrop_tensor *tensors[MOST];
  void *arrays[MOST];
  int32_t count = step->reads + step->writes;
  if (count > MOST) {
    sd_fail("part %d has more than %d tensors", step->part, MOST);
    return -1;
  }
  for (int32_t k = 0; k < count; k++) {
    tensors[k] = &size->views[step->arguments[k]].tensor;
    arrays[k] = here->tensors[step->arguments[k]].data;
  }
  sd_fail("it gives no reason");
  return model->part(call, step->part, step->reads, tensors, (const void *const *)arrays, step->writes,
                     tensors + step->reads, arrays + step->reads);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int run_steps(const stormdrop_model *model, const sd_size *size, const execution *here, void *call,
                     double *seconds) {
  const sd_any *arguments = here->arguments;
  double before = seconds ? now() : 0;
  for (const sd_step *step = size->steps, *end = step + size->step_count; step < end; step++) {
    int32_t count = step->reads + step->writes;
    int status = 0;
    if (step->kind == SD_KERNEL) {
      sd_any result = {0, 0, {0}};
      status = step->kernel(NULL, arguments, count, &result);
    } else if (step->kind == SD_COPY) {
      const sd_dl_tensor *tensors = here->tensors;
      memcpy(tensors[step->arguments[1]].data, tensors[step->arguments[0]].data,
             size->views[step->arguments[0]].tensor.bytes);
    } else {
      status = run_part(model, size, step, here, call);
    }
    if (status) {
      char reason[512];
      snprintf(reason, sizeof reason, "%s", stormdrop_error());
      sd_fail("%s: %s fails: %s", model->program->name, step->name, reason);
      return -1;
    }
    arguments += count;
    if (seconds) {
      double after = now();
      seconds[step - size->steps] = after - before;
      before = after;
    }
  }
  return 0;
}

static int execute(stormdrop_model *model, int32_t index, const void *const *inputs, void *const *outputs, void *call,
                   double *seconds) {
  const sd_program *program = model->program;
  const sd_size *size = size_of(model, index);
  if (!size) {
    sd_fail("%s: has no size %d; it has %d", program->name, index, program->listed_count);
    return -1;
  }
  const char *why = NULL;
  sd_team *team = model->pool->begin(model->pool, model->threads, &why);
  if (!team) {
    sd_fail("%s: %s", program->name, why);
    return -1;
  }
  int status = -1;
  execution *here = take_execution(model, index);
  if (!here) sd_fail("%s: no memory", program->name);
  if (here && place_arrays(program, size, here, inputs, outputs)) {
    sd_lane outer = sd_enter((sd_lane){team, model->pool, model->pool->stack(team)});
    uint64_t mode = sd_change_mode(program->keep_denormals);
    sd_fail("it gives no reason");
    status = run_steps(model, size, here, call, seconds);
    if (sd_mode() != mode) sd_set_mode(mode);
    sd_enter(outer);
    for (int32_t i = 0; i < program->output_count && !status; i++) {
      const void *copy = here->copies[program->input_count + i];
      if (copy && (uintptr_t)outputs[i] % SD_ALIGNMENT) memcpy(outputs[i], copy, size->outputs[i].bytes);
    }
  }
  if (here) give_execution(model, index, here);
  model->pool->end(model->pool, team);
  return status;
}
