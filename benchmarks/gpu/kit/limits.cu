// What a GPU does at most: float32 FMAs in registers, and copies within its memory. Prints one JSON document.
//
//     nvcc -O3 -arch=sm_90 limits.cu -o limits && ./limits

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

static void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

constexpr int kChains = 16;  // independent sums of a thread, more than the latency of an FMA
constexpr int kSteps = 4096;
constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) multiply_add(float* out, float a, float b) {
  float sums[kChains];
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = threadIdx.x + chain;
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = fmaf(sums[chain], a, b);
  }
  float total = 0;
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain];
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

__global__ void copy(float4* to, const float4* from, size_t count) {
  size_t stride = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += stride) to[i] = from[i];
}

// The shortest of 20 launches, in seconds, after one that warms up.
template <typename Launch>
static double shortest(Launch launch) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float least = 1e30f;
  for (int turn = 0; turn < 21; ++turn) {
    check(cudaEventRecord(begin));
    launch();
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (turn > 0) least = std::min(least, milliseconds);
  }
  return least * 1e-3;
}

int main() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  int blocks = device.multiProcessorCount * 32;
  float* out;
  check(cudaMalloc(&out, sizeof(float) * blocks * kThreads));
  double arithmetic = shortest([&] { multiply_add<<<blocks, kThreads>>>(out, 0.999f, 0.001f); });
  double operations = 2.0 * kChains * kSteps * kThreads * blocks;

  // Far more than the caches hold, and little enough for a small GPU.
  size_t bytes = std::min<size_t>(size_t(1) << 30, device.totalGlobalMem / 8) / sizeof(float4) * sizeof(float4);
  float4 *from, *to;
  check(cudaMalloc(&from, bytes));
  check(cudaMalloc(&to, bytes));
  check(cudaMemset(from, 0, bytes));
  double copying = shortest([&] { copy<<<blocks, kThreads>>>(to, from, bytes / sizeof(float4)); });
  printf("{\"name\": \"%s\", \"flops\": %.6g, \"bandwidth\": %.6g}\n", device.name, operations / arithmetic,
         2.0 * bytes / copying);
}
