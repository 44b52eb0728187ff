// Enough of CUDA to execute the kernels that TVM generates on a CPU, one block at a time, with a thread for each thread.
//
// Barriers and shuffles are real: a thread waits for the others. Compile with -fsanitize=thread to find data races in
// shared memory, and with -fsanitize=address to find accesses out of bounds. Checked here:
//   __syncthreads   all threads of a block are at the same line
//   shuffles        a lane is in its own mask; all lanes of the mask come, with the same mask; the source is in the mask
//   inline PTX      see ptx_on_host.h
// Not modelled: blocks run one after the other, so races between blocks are not found; warps do not run in lockstep;
// shared memory whose size the launch gives.
#pragma once
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // CUDA takes it between storage class and type
#define __restrict__ __restrict
#define CUDART_INF_F INFINITY

struct host_dim3 { int x, y, z; };
inline thread_local host_dim3 threadIdx, blockIdx;
inline host_dim3 blockDim;

// ------------------------------------------------------------------------------------------------- faults and waiting
[[noreturn]] inline void host_fault(const char* what, int line) {
  fprintf(stderr, "host fault: %s (line %d, block %d, thread %d %d)\n", what, line, blockIdx.x, threadIdx.x, threadIdx.y);
  fflush(stderr);
  _Exit(3);
}

constexpr int host_patience = 60;  // seconds that a thread waits for the others

inline int host_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline int host_threads() { return blockDim.x * blockDim.y * blockDim.z; }

// --------------------------------------------------------------------------------------------------------------- warps
struct host_lane { unsigned at[8]; };  // registers
struct host_warp {
  unsigned locked = 0, mask = 0, arrived = 0, at_barrier = 0, generation = 0;
  int line = 0;
  host_lane lanes[2][32];  // of this exchange, and of the one before, which a lane may still read
};
inline host_warp host_warps[32];

inline unsigned host_live_lanes() {
  int rest = host_threads() - host_thread() / 32 * 32;
  return rest >= 32 ? 0xffffffffu : (1u << rest) - 1;
}
inline unsigned __activemask() { return host_live_lanes(); }
inline int host_lane_id() { return host_thread() % 32; }

__attribute__((noinline, no_sanitize("thread")))
inline void host_lock(host_warp& warp) {
  while (__atomic_exchange_n(&warp.locked, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
__attribute__((noinline, no_sanitize("thread")))
inline void host_unlock(host_warp& warp) { __atomic_store_n(&warp.locked, 0, __ATOMIC_RELEASE); }

// What the lanes of a mask bring, once all of them are here. It orders no accesses to memory, as on a GPU: that is why
// ThreadSanitizer must not see it.
__attribute__((noinline, no_sanitize("thread")))
inline const host_lane* host_exchange(unsigned mask, const host_lane& bring, int line) {
  host_warp& warp = host_warps[host_thread() / 32];
  const unsigned lane = host_lane_id();
  if (!(mask >> lane & 1)) host_fault("a lane is not in its own mask", line);
  host_lock(warp);
  if (warp.arrived == 0) warp.mask = mask, warp.line = line;
  if (warp.mask != mask || warp.line != line) host_fault("lanes of a warp do not work together", line);
  if (mask & warp.at_barrier) host_fault("not all lanes of a warp come", line);
  const unsigned mine = warp.generation;
  warp.lanes[mine % 2][lane] = bring;
  warp.arrived |= 1u << lane;
  const bool complete = warp.arrived == mask;
  if (complete) {
    warp.arrived = 0;
    __atomic_store_n(&warp.generation, mine + 1, __ATOMIC_RELEASE);
  }
  host_unlock(warp);
  if (complete) syscall(SYS_futex, &warp.generation, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  const timespec patience = {host_patience, 0};
  while (__atomic_load_n(&warp.generation, __ATOMIC_ACQUIRE) == mine)
    if (syscall(SYS_futex, &warp.generation, FUTEX_WAIT_PRIVATE, mine, &patience, nullptr, 0) && errno == ETIMEDOUT)
      host_fault("not all lanes of a warp come", line);
  return warp.lanes[mine % 2];
}

// The lane waits for all threads of the block, so none of its warp may wait for it.
__attribute__((noinline, no_sanitize("thread")))
inline void host_enter_barrier() {
  host_warp& warp = host_warps[host_thread() / 32];
  host_lock(warp);
  warp.at_barrier |= 1u << host_lane_id();
  if (warp.arrived && warp.mask & warp.at_barrier) host_fault("not all lanes of a warp come", warp.line);
  host_unlock(warp);
}

// All threads of a block meet here. Each must come from the same line.
inline void host_barrier(int line) {
  host_enter_barrier();
  static std::mutex mutex;
  static std::condition_variable all_here;
  static int arrived = 0, expected = 0;
  static unsigned generation = 0;
  std::unique_lock<std::mutex> lock(mutex);
  if (arrived == 0) expected = line;
  if (expected != line) host_fault("threads of a block wait at different barriers", line);
  if (++arrived == host_threads()) {
    arrived = 0;
    ++generation;
    for (host_warp& warp : host_warps) warp.at_barrier = 0;
    all_here.notify_all();
    return;
  }
  unsigned mine = generation;
  if (!all_here.wait_for(lock, std::chrono::seconds(host_patience), [&] { return generation != mine; }))
    host_fault("not all threads of a block reach a barrier", line);
}
#define __syncthreads() host_barrier(__LINE__)

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#else
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
#endif
inline void host_sync_warp(int line) {
  host_warp& warp = host_warps[host_thread() / 32];
  __tsan_release(&warp);
  host_exchange(host_live_lanes(), {}, line);
  __tsan_acquire(&warp);
}

template <typename T>
inline T host_shuffle(unsigned mask, T value, int source, int line) {
  static_assert(sizeof(T) <= sizeof(host_lane), "a lane has no more registers");
  host_lane bring = {};
  memcpy(&bring, &value, sizeof value);
  const host_lane* lanes = host_exchange(mask, bring, line);
  if (!(mask >> source & 1)) memset(&value, 0xff, sizeof value);  // undefined on a GPU; NaN here
  else memcpy(&value, &lanes[source], sizeof value);
  return value;
}
template <typename T>
inline T host_shuffle_down(unsigned mask, T value, int delta, int width, int line) {
  int lane = host_lane_id(), inside = lane % width;
  return host_shuffle(mask, value, inside + delta < width ? lane + delta : lane, line);
}
template <typename T>
inline T host_shuffle_up(unsigned mask, T value, int delta, int width, int line) {
  int lane = host_lane_id(), inside = lane % width;
  return host_shuffle(mask, value, inside >= delta ? lane - delta : lane, line);
}
#define __shfl_sync(mask, value, source, width) \
  host_shuffle(mask, value, host_lane_id() / (width) * (width) + (source) % (width), __LINE__)
#define __shfl_down_sync(mask, value, delta, width) host_shuffle_down(mask, value, delta, width, __LINE__)
#define __shfl_up_sync(mask, value, delta, width) host_shuffle_up(mask, value, delta, width, __LINE__)
#define __shfl_xor_sync(mask, value, bits, width) host_shuffle(mask, value, host_lane_id() ^ (bits), __LINE__)
#define __syncwarp(...) host_sync_warp(__LINE__)

// ------------------------------------------------------------------------------------------------------- types, numbers
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef _Float16 half;
typedef _Float16 __half;
#define HOST_VECTORS(type, name)                                             \
  struct __align__(2 * sizeof(type)) name##2 { type x, y; };                 \
  struct name##3 { type x, y, z; };                                          \
  struct __align__(4 * sizeof(type)) name##4 { type x, y, z, w; };           \
  struct name##1 { type x; };                                                \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }           \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
HOST_VECTORS(float, float)
HOST_VECTORS(int, int)
HOST_VECTORS(unsigned, uint)
HOST_VECTORS(unsigned short, ushort)
HOST_VECTORS(short, short)
HOST_VECTORS(unsigned char, uchar)
HOST_VECTORS(signed char, char)
HOST_VECTORS(long long, longlong)
HOST_VECTORS(unsigned long long, ulonglong)
HOST_VECTORS(double, double)
#undef HOST_VECTORS
struct __align__(4) half2 { half x, y; };
struct __align__(8) half4 { half x, y, z, w; };
inline half4 make_half4(half x, half y, half z, half w) { return {x, y, z, w}; }
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half __float2half_rn(float value) { return (half)value; }
inline half __float2half(float value) { return (half)value; }
inline float __half2float(half value) { return (float)value; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline unsigned __pack_half2(half x, half y) {
  half pair[] = {x, y};
  unsigned word;
  memcpy(&word, pair, 4);
  return word;
}
template <typename A, typename B> inline auto max(A a, B b) { return a > b ? a : b; }
template <typename A, typename B> inline auto min(A a, B b) { return a < b ? a : b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// ------------------------------------------------------------------------------------------------ fragments of a warp
namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <typename Layout> constexpr bool by_columns = false;
template <> constexpr bool by_columns<col_major> = true;

// Each lane holds the whole fragment. On a GPU it holds a part of it.
template <typename Use, int m, int n, int k, typename T, typename Layout = row_major>
struct fragment { float at[16][16]; };

template <typename Use, int m, int n, int k, typename T, typename L, typename V>
inline void fill_fragment(fragment<Use, m, n, k, T, L>& to, V value) {
  for (auto& row : to.at) for (float& each : row) each = (float)value;
}
template <typename Use, int m, int n, int k, typename T, typename L, typename P>
inline void load_matrix_sync(fragment<Use, m, n, k, T, L>& to, const P* from, unsigned stride, layout_t layout) {
  host_exchange(host_live_lanes(), {}, __LINE__);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j)
      to.at[i][j] = (float)(layout == mem_col_major ? from[j * stride + i] : from[i * stride + j]);
}
template <typename Use, int m, int n, int k, typename T, typename L, typename P>
inline void load_matrix_sync(fragment<Use, m, n, k, T, L>& to, const P* from, unsigned stride) {
  load_matrix_sync(to, from, stride, by_columns<L> ? mem_col_major : mem_row_major);
}
// Lane l stores every 32nd element, so that each element is stored once.
template <int m, int n, int k, typename T, typename L, typename P>
inline void store_matrix_sync(P* to, const fragment<accumulator, m, n, k, T, L>& from, unsigned stride, layout_t layout) {
  for (int e = host_lane_id(); e < 256; e += 32) {
    int i = e / 16, j = e % 16;
    to[layout == mem_col_major ? j * stride + i : i * stride + j] = (P)from.at[i][j];
  }
  host_exchange(host_live_lanes(), {}, __LINE__);
}
template <typename D, typename A, typename B, typename C>
inline void mma_sync(D& d, const A& a, const B& b, const C& c) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      float sum = c.at[i][j];
      for (int p = 0; p < 16; ++p) sum += a.at[i][p] * b.at[p][j];
      d.at[i][j] = sum;
    }
}
}  // namespace wmma
}  // namespace nvcuda

#include "ptx_on_host.h"

// ------------------------------------------------------------------------------------------------------------ launching
// Executes a kernel: each thread goes through all blocks, and waits for the others of its block after each.
// If there are more than `most` of them, it goes through as many: the first, the last, and some evenly in between.
template <typename Kernel>
inline void host_launch(host_dim3 grid, host_dim3 block, Kernel kernel, long most = LONG_MAX) {
  blockDim = block;
  const long all = (long)grid.x * grid.y * grid.z, count = all < most ? all : most;
  std::vector<std::thread> threads;
  for (int z = 0; z < block.z; ++z)
    for (int y = 0; y < block.y; ++y)
      for (int x = 0; x < block.x; ++x)
        threads.emplace_back([=] {
          threadIdx = {x, y, z};
          for (long n = 0; n < count; ++n) {
            const long at = count == all ? n : n * (all - 1) / (count > 1 ? count - 1 : 1);
            blockIdx = {int(at % grid.x), int(at / grid.x % grid.y), int(at / grid.x / grid.y)};
            kernel();
            if (!host_copies.empty()) host_fault("copies that nobody waits for", 0);
            host_barrier(-1);  // shared memory is the next block's from here on
          }
        });
  for (std::thread& thread : threads) thread.join();
}

// Memory of exactly this size, so that AddressSanitizer knows its end; with the bytes of a file, if there is one.
inline void* host_read(const char* path, size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, 64, bytes)) abort();
  if (!path) return data;
  FILE* file = fopen(path, "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) { perror(path); _Exit(4); }
  fclose(file);
  return data;
}
inline void host_write(const char* path, const void* data, size_t bytes) {
  FILE* file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) { perror(path); _Exit(4); }
}
