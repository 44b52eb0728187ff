/* What Python calls where TVM is there, too: it loads the kernels of the library as TVM's functions, prepares their
 * arguments, and lets this function call them one after the other. `model/program/run_steps.py` has it for other models. */
#include "program.h"

/* A function of TVM's, as tvm/ffi/c_api.h declares it: TVMFFIObject, then TVMFFIFunctionCell. */
typedef struct {
  char object[24];
  sd_kernel call;
} sd_function;

typedef struct {
  sd_function *kernel;
  const sd_any *arguments;
  uint64_t count;
} sd_prepared;

int __tvm_ffi_stormdrop_run_steps(void *self, const sd_any *arguments, int32_t count, sd_any *result);

/* Takes the address of the first step and the number of steps. */
int __tvm_ffi_stormdrop_run_steps(void *self, const sd_any *arguments, int32_t count, sd_any *result) {
  (void)self, (void)count, (void)result;
  const sd_prepared *step = arguments[0].value.pointer, *end = step + arguments[1].value.integer;
  for (; step < end; step++) {
    sd_any ignored = {0};
    int status = step->kernel->call(step->kernel, step->arguments, (int32_t)step->count, &ignored);
    if (status) return status;
  }
  return 0;
}
