// Enough of CUDA to execute the kernels that TVM generates on a CPU, one block at a time, with a thread for each thread.
//
// Barriers and shuffles are real: a thread waits for the others. Compile with -fsanitize=thread to find data races in
// shared memory, and with -fsanitize=address to find accesses out of bounds. Checked here:
//   __syncthreads   all threads of a block are at the same line
//   shuffles        a lane is in its own mask; all lanes of the mask come, with the same mask; the source is in the mask
//   cp.async        addresses are aligned; what is not waited for is NaN; nothing is left when the kernel ends
//   ldmatrix, mma   all lanes come; addresses are aligned; each lane has the elements that PTX gives it
// Not modelled: blocks run one after the other, so races between blocks are not found; warps do not run in lockstep.
#pragma once
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
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

// All threads of a block meet here. Each must come from the same line.
inline void host_barrier(int line) {
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
    all_here.notify_all();
    return;
  }
  unsigned mine = generation;
  if (!all_here.wait_for(lock, std::chrono::seconds(host_patience), [&] { return generation != mine; }))
    host_fault("not all threads of a block reach a barrier", line);
}
#define __syncthreads() host_barrier(__LINE__)

// --------------------------------------------------------------------------------------------------------------- warps
struct host_words { uint64_t at[3]; };  // what a lane brings
struct host_warp {
  std::mutex mutex;
  std::condition_variable all_here;
  unsigned mask = 0, arrived = 0, generation = 0;
  int line = 0;
  host_words incoming[32], values[2][32];
};
inline host_warp host_warps[32];

inline unsigned host_live_lanes() {
  int rest = host_threads() - host_thread() / 32 * 32;
  return rest >= 32 ? 0xffffffffu : (1u << rest) - 1;
}
inline unsigned __activemask() { return host_live_lanes(); }

// What the lanes of a mask bring, once all of them are here.
inline const host_words* host_exchange(unsigned mask, host_words words, int line) {
  host_warp& warp = host_warps[host_thread() / 32];
  unsigned lane = host_thread() % 32;
  std::unique_lock<std::mutex> lock(warp.mutex);
  if (!(mask >> lane & 1)) host_fault("a lane is not in its own mask", line);
  if (warp.arrived == 0) warp.mask = mask, warp.line = line;
  if (warp.mask != mask || warp.line != line) host_fault("lanes of a warp do not shuffle together", line);
  warp.incoming[lane] = words;
  warp.arrived |= 1u << lane;
  unsigned mine = warp.generation;
  if (warp.arrived == mask) {
    memcpy(warp.values[mine % 2], warp.incoming, sizeof warp.incoming);
    warp.arrived = 0;
    ++warp.generation;
    warp.all_here.notify_all();
  } else if (!warp.all_here.wait_for(lock, std::chrono::seconds(host_patience), [&] { return warp.generation != mine; })) {
    host_fault("not all lanes of a mask reach a shuffle", line);
  }
  return warp.values[mine % 2];
}

template <typename T>
inline T host_shuffle(unsigned mask, T value, int source, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffled value has at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  const host_words* values = host_exchange(mask, {bits}, line);
  if (!(mask >> source & 1)) memset(&value, 0xff, sizeof value);  // undefined on a GPU; NaN here
  else memcpy(&value, &values[source].at[0], sizeof value);
  return value;
}
inline int host_lane() { return host_thread() % 32; }
template <typename T>
inline T host_shuffle_down(unsigned mask, T value, int delta, int width, int line) {
  int lane = host_lane(), inside = lane % width;
  return host_shuffle(mask, value, inside + delta < width ? lane + delta : lane, line);
}
template <typename T>
inline T host_shuffle_up(unsigned mask, T value, int delta, int width, int line) {
  int lane = host_lane(), inside = lane % width;
  return host_shuffle(mask, value, inside >= delta ? lane - delta : lane, line);
}
#define __shfl_sync(mask, value, source, width) \
  host_shuffle(mask, value, host_lane() / (width) * (width) + (source) % (width), __LINE__)
#define __shfl_down_sync(mask, value, delta, width) host_shuffle_down(mask, value, delta, width, __LINE__)
#define __shfl_up_sync(mask, value, delta, width) host_shuffle_up(mask, value, delta, width, __LINE__)
#define __shfl_xor_sync(mask, value, bits, width) host_shuffle(mask, value, host_lane() ^ (bits), __LINE__)
#define __syncwarp(...) (void)host_exchange(host_live_lanes(), {}, __LINE__)

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
  (void)host_exchange(host_live_lanes(), {}, __LINE__);
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
  for (int e = host_lane(); e < 256; e += 32) {
    int i = e / 16, j = e % 16;
    to[layout == mem_col_major ? j * stride + i : i * stride + j] = (P)from.at[i][j];
  }
  (void)host_exchange(host_live_lanes(), {}, __LINE__);
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

// ------------------------------------------------------------------------------------ instructions of PTX, by their names
// Copies to shared memory on their own: what is copied is there once its group is waited for, and NaN until then.
struct host_copy { char* to; const char* from; int bytes; };
inline thread_local std::vector<std::vector<host_copy>> host_copies{1};  // by group; the last one is not committed yet

inline void host_aligned(const void* address, int bytes, int line) {
  if ((uintptr_t)address % bytes) host_fault("an address is not aligned", line);
}
template <int bytes, int item_to, int item_from>
inline void host_copy_async(void* to, int at, const void* from, int from_at, int line) {
  host_copy copy{(char*)to + at * item_to, (const char*)from + from_at * item_from, bytes};
  host_aligned(copy.to, bytes, line);
  host_aligned(copy.from, bytes, line);
  memset(copy.to, 0xff, bytes);
  host_copies.back().push_back(copy);
}
inline void host_commit() { host_copies.emplace_back(); }
inline void host_wait(size_t groups) {
  for (; host_copies.size() > groups + 1; host_copies.erase(host_copies.begin()))
    for (const host_copy& copy : host_copies.front()) memcpy(copy.to, copy.from, copy.bytes);
}
#define __cvta_generic_to_shared(address) (uintptr_t)(address)

// Matrices of 8 rows of 16 bytes, whose addresses the lanes have: a lane gets two elements of each.
template <int count, bool transposed>
inline void host_load_matrices(unsigned** to, uintptr_t address, int line) {
  host_aligned((void*)address, 16, line);
  const host_words* rows = host_exchange(0xffffffffu, {address}, line);
  int lane = host_lane();
  for (int matrix = 0; matrix < count; ++matrix) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      int row = transposed ? lane % 4 * 2 + i : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + i;
      pair[i] = ((const uint16_t*)rows[matrix * 8 + row].at[0])[column];
    }
    memcpy(to[matrix], pair, 4);
  }
}
#define HOST_LOAD_4(name, transposed)                                                                            \
  inline void name(int line, unsigned& a, unsigned& b, unsigned& c, unsigned& d, uintptr_t address) {             \
    unsigned* to[] = {&a, &b, &c, &d};                                                                            \
    host_load_matrices<4, transposed>(to, address, line);                                                         \
  }
HOST_LOAD_4(ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16, false)
HOST_LOAD_4(ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, true)
#undef HOST_LOAD_4

// A product of 16 x k and k x 8. Lane l has rows l / 4 and l / 4 + 8 of the first operand and of the sums, and column
// l / 4 of the second one. A register has `packed` neighbouring elements along k.
template <int packed, typename Sum, typename Element>
inline void host_mma(int line, Sum** sums, const unsigned* a, const unsigned* b, const Sum* start, Element element) {
  host_words mine;
  memcpy(mine.at, a, 16), memcpy(&mine.at[2], b, 8);
  const host_words* lanes = host_exchange(0xffffffffu, mine, line);
  int lane = host_lane();
  auto at = [&](int of, int word, int position) { return element(((const unsigned*)lanes[of].at)[word], position); };
  for (int i = 0; i < 4; ++i) {
    int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    Sum sum = start[i];
    for (int k = 0; k < 8 * packed; ++k) {
      int half = k / (4 * packed), holder = k % (4 * packed) / packed, position = k % packed;
      sum += (Sum)at(row % 8 * 4 + holder, row / 8 + half * 2, position) * (Sum)at(column * 4 + holder, 4 + half, position);
    }
    *sums[i] = sum;
  }
}
inline float host_half_of(unsigned word, int position) {
  uint16_t bits = word >> 16 * position;
  half value;
  memcpy(&value, &bits, 2);
  return (float)value;
}
inline float host_bfloat16_of(unsigned word, int position) {
  unsigned bits = word >> 16 * position << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline float host_tf32_of(unsigned word, int) {
  unsigned bits = word & 0xffffe000u;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline int host_byte_of(unsigned word, int position) { return (int8_t)(word >> 8 * position); }
#define HOST_MMA(name, packed, type, element)                                                                        \
  inline void name(int line, type& d0, type& d1, type& d2, type& d3, unsigned a0, unsigned a1, unsigned a2,            \
                   unsigned a3, unsigned b0, unsigned b1, type c0, type c1, type c2, type c3) {                        \
    type* sums[] = {&d0, &d1, &d2, &d3};                                                                             \
    const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};                                                           \
    const type start[] = {c0, c1, c2, c3};                                                                           \
    host_mma<packed>(line, sums, a, b, start, element);                                                              \
  }
HOST_MMA(ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, 2, float, host_half_of)
HOST_MMA(ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 2, float, host_bfloat16_of)
HOST_MMA(ptx_mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32, 1, float, host_tf32_of)
HOST_MMA(ptx_mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, 4, int, host_byte_of)
#undef HOST_MMA

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
            if (host_copies.size() > 1 || !host_copies[0].empty()) host_fault("copies that nobody waits for", 0);
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
