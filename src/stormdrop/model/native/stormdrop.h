/* A tuned model in C. `model.so` has this interface; it needs libc, libm and pthreads, and nothing else.
 *
 *   stormdrop_model *model = stormdrop_open("resnet50.sd", NULL);
 *   if (!model) { fprintf(stderr, "%s\n", stormdrop_error()); return 1; }
 *   const void *inputs[] = {image};
 *   void *outputs[] = {probabilities};
 *   if (stormdrop_run(model, 0, inputs, outputs, NULL)) fprintf(stderr, "%s\n", stormdrop_error());
 *   stormdrop_close(model);
 *
 * Any number of threads may use one model at a time. Calls in progress share the cores out: together they have no more
 * threads than this process may use (CPU affinity, CPU quota of its control groups), and a call waits if none is free.
 * To use several models in one process, load their libraries with dlopen, as all have the same names in them.
 */
#ifndef STORMDROP_H
#define STORMDROP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define STORMDROP_INTERFACE 1 /* The version of this header. */

typedef struct stormdrop_model stormdrop_model;
typedef struct stormdrop_pool stormdrop_pool;

/* An input, an output, or what a part reads or writes. Elements lie in C order, without gaps. */
typedef struct {
  const char *name;     /* Of an input or output; else NULL. */
  const char *type;     /* "float32", "int64", "bool", "bfloat16" and so on. */
  const int64_t *shape; /* -1 for a size that depends on the values of the inputs. */
  int32_t rank;         /* The number of dimensions. */
  int32_t output;       /* The index of the output of the model that it is; else -1. */
  uint64_t bytes;       /* 0 if its shape depends on the values of the inputs. */
} stormdrop_tensor;

/* Runs a part of a model for which there are no kernels. `call` is what the caller gave to `stormdrop_run`. An array is
 * NULL where its shape depends on data: the function makes such an output, and hands it to the caller by way of `call`.
 * It returns 0, or another number if it fails. */
typedef int (*stormdrop_part_function)(void *call, int32_t part, int32_t inputs, const stormdrop_tensor *const *in,
                                       const void *const *input, int32_t outputs, const stormdrop_tensor *const *out,
                                       void *const *output);

/* How to open a model. All zeros, but for `interface`, is what NULL stands for. */
typedef struct {
  uint32_t interface;            /* STORMDROP_INTERFACE */
  int32_t threads;               /* The most threads of a call, the calling one included; 0 for all usable cores. */
  const void *constants;         /* weights.bin in memory, from a multiple of 64 bytes on, until the model is closed. */
  size_t constants_bytes;        /* Its size. */
  int32_t unchecked;             /* If not 0, `constants` are not compared with their SHA-256. */
  stormdrop_part_function part;  /* Models with parts, or open shapes, are refused without it: C alone has none. */
  const stormdrop_pool *pool;    /* Of another open model, whose library stays loaded: shares its threads and cores. */
} stormdrop_options;

/* The version of the interface that the library has. */
uint32_t stormdrop_interface(void);

/* Whether a kernel calls a function of TVM, as those of TopK and of sorting do: the model then cannot be opened. */
int32_t stormdrop_needs_tvm(void);

/* Why the last function that failed in this thread did so: one line. */
const char *stormdrop_error(void);

/* Opens the model. `path` is the folder of the model, or its weights.bin; it may be NULL if `options` has the constants
 * or there are none. Checks size and SHA-256 of the constants and the instructions of this CPU before any kernel runs.
 * Returns NULL on an error. */
stormdrop_model *stormdrop_open(const char *path, const stormdrop_options *options);

/* Closes it. No call may be in progress. NULL is allowed. */
void stormdrop_close(stormdrop_model *model);

/* What the model is called, and the numbers of its sizes, inputs and outputs. */
const char *stormdrop_name(const stormdrop_model *model);
int32_t stormdrop_sizes(const stormdrop_model *model);
int32_t stormdrop_inputs(const stormdrop_model *model);
int32_t stormdrop_outputs(const stormdrop_model *model);

/* An input or output at a size. NULL if there is none. It lives as long as the library. */
const stormdrop_tensor *stormdrop_input(const stormdrop_model *model, int32_t size, int32_t index);
const stormdrop_tensor *stormdrop_output(const stormdrop_model *model, int32_t size, int32_t index);

/* The most threads of a call. */
int32_t stormdrop_threads(const stormdrop_model *model);

/* The threads of the model, for the options of another one. */
const stormdrop_pool *stormdrop_pool_of(const stormdrop_model *model);

/* Runs the model at a size on the caller's memory: an array for each input and output. Arrays that begin at a multiple
 * of 64 bytes are used in place, others are copied. Inputs and outputs do not overlap. Returns 0, or -1 on an error.
 *
 * A decoder that can write its states in place has one size more for each of its sizes, behind these. The array of the
 * output of a state has the former rows then, in the order of axes that program.json states, begins at a multiple of 64 bytes, and gets the new rows; that of the
 * input is not read and may be NULL. */
int stormdrop_run(stormdrop_model *model, int32_t size, const void *const *inputs, void *const *outputs, void *call);

/* The steps of an execution: how many, and what each one is called. NULL if there is none. */
int32_t stormdrop_steps(const stormdrop_model *model, int32_t size);
const char *stormdrop_step(const stormdrop_model *model, int32_t size, int32_t step);

/* Runs the model as `stormdrop_run`, and writes the seconds of each step. */
int stormdrop_profile(stormdrop_model *model, int32_t size, const void *const *inputs, void *const *outputs, void *call,
                      double *seconds);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
