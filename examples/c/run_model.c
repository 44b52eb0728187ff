/* Runs a native model on inputs of zeros, and prints how long a call takes:  run_model MODEL.sd */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stormdrop.h"

static void *memory_of(const stormdrop_tensor *tensor) {
  size_t bytes = (tensor->bytes + 63) / 64 * 64; /* What begins at a multiple of 64 bytes is used in place. */
  void *memory = aligned_alloc(64, bytes ? bytes : 64);
  return memory ? memset(memory, 0, bytes) : NULL;
}

int main(int count, char **arguments) {
  stormdrop_model *model = stormdrop_open(count > 1 ? arguments[1] : ".", NULL);
  if (!model) return fprintf(stderr, "%s\n", stormdrop_error()), 1;
  int inputs = stormdrop_inputs(model), outputs = stormdrop_outputs(model);
  const void **in = calloc(inputs + 1, sizeof *in);
  void **out = calloc(outputs + 1, sizeof *out);
  for (int i = 0; i < inputs; i++) in[i] = memory_of(stormdrop_input(model, 0, i));
  for (int i = 0; i < outputs; i++) out[i] = memory_of(stormdrop_output(model, 0, i));
  double best = 1e9;
  for (int turn = 0; turn < 100; turn++) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    if (stormdrop_run(model, 0, in, out, NULL)) return fprintf(stderr, "%s\n", stormdrop_error()), 1;
    clock_gettime(CLOCK_MONOTONIC, &after);
    double seconds = after.tv_sec - before.tv_sec + 1e-9 * (after.tv_nsec - before.tv_nsec);
    best = seconds < best ? seconds : best;
  }
  const stormdrop_tensor *first = stormdrop_output(model, 0, 0);
  printf("%s: %.3f ms on %d threads\n", stormdrop_name(model), 1e3 * best, stormdrop_threads(model));
  if (!strcmp(first->type, "float32")) printf("%s begins with %g\n", first->name, *(float *)out[0]);
  for (int i = 0; i < inputs; i++) free((void *)in[i]);
  for (int i = 0; i < outputs; i++) free(out[i]);
  free(in), free(out), stormdrop_close(model);
  return 0;
}
