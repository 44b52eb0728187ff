// The PTX instructions that `inline_ptx.py` knows: fragments are held by the lanes as "PTX ISA" lays them out.
//
//   ldmatrix, mma   all 32 lanes of a warp come, at the same line; they order no accesses to memory
//   cp.async        the destination is NaN until the thread waits for the copy's group, and others see it after a barrier
//   addresses       of 16 bytes (ldmatrix) or of the copied size (cp.async) are aligned, and in shared memory
#pragma once

inline unsigned host_whole_warp(int line) {
  if (host_live_lanes() != 0xffffffffu) host_fault("a warp has less than 32 lanes", line);
  return 0xffffffffu;
}
template <typename T>
inline unsigned host_bits(T value) {
  static_assert(sizeof(T) == 4, "a register has 4 bytes");
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
template <typename T>
inline void host_set(T& to, unsigned bits) {
  static_assert(sizeof(T) == 4, "a register has 4 bytes");
  memcpy(&to, &bits, 4);
}

// ------------------------------------------------------------------------------------- addresses of shared memory
// Shared memory is static: it lies between these symbols of the linker, and 32 bits hold how far from the first one.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

inline unsigned __cvta_generic_to_shared(const void* address) {
  if (address < __bss_start || address >= _end) host_fault("an address is not in shared memory", __LINE__);
  return (const char*)address - __bss_start;
}
inline char* host_shared(unsigned address, unsigned alignment, int line) {
  char* pointer = __bss_start + address;
  if ((uintptr_t)pointer % alignment) host_fault("an address in shared memory is not aligned", line);
  return pointer;
}

// ------------------------------------------------------------------------------------------------------- roundings
// The upper bits of a float32, rounded to the nearest: `even` says where ties go, else away from 0. NaN stays NaN.
inline unsigned host_upper_bits(float value, int kept, bool even) {
  const unsigned bits = host_bits(value), lost = 32 - kept, half = 1u << (lost - 1);
  if (value != value) return 0x7fffffffu >> lost << lost;
  return (bits + (even ? half - 1 + (bits >> lost & 1) : half)) >> lost << lost;
}
inline unsigned host_bfloat16_pair(float upper, float lower) {
  return host_upper_bits(upper, 16, true) | host_upper_bits(lower, 16, true) >> 16;
}
inline unsigned host_tf32_rounded(float value) { return host_upper_bits(value, 19, false); }

// Denormals become zeros, as `ftz` says.
inline unsigned host_exp2(float value) {
  const float power = exp2f(value);
  return host_bits(power < 0x1p-126f ? 0.0f : power);
}

// ----------------------------------------------------------------------------------------------------- tensor cores
// How elements lie in a register: how many, and the value of one.
struct host_f32 {
  static constexpr int each = 1;
  static float get(unsigned bits, int) { float value; memcpy(&value, &bits, 4); return value; }
  static unsigned put(float value, int) { return host_bits(value); }
};
struct host_tf32 {
  static constexpr int each = 1;
  static float get(unsigned bits, int) { return host_f32::get(bits & ~0x1fffu, 0); }
};
struct host_bf16 {
  static constexpr int each = 2;
  static float get(unsigned bits, int at) { return host_f32::get(bits >> 16 * at << 16, 0); }
};
struct host_f16 {
  static constexpr int each = 2;
  static float get(unsigned bits, int at) { uint16_t raw = bits >> 16 * at; half value; memcpy(&value, &raw, 2); return value; }
  static unsigned put(float sum, int at) { half value = sum; uint16_t raw; memcpy(&raw, &value, 2); return (unsigned)raw << 16 * at; }
};
struct host_s8 {
  static constexpr int each = 4;
  static int get(unsigned bits, int at) { return (int8_t)(bits >> 8 * at); }
};
struct host_u8 {
  static constexpr int each = 4;
  static int get(unsigned bits, int at) { return (uint8_t)(bits >> 8 * at); }
};
struct host_s32 {
  static constexpr int each = 1;
  static int get(unsigned bits, int) { return (int)bits; }
  static unsigned put(int value, int) { return (unsigned)value; }
};

// D = A * B + C: 16 x k by k x 8. Four lanes share a row of A and D, and a column of B.
template <int k, typename D, typename A, typename B, typename C>
inline void host_mma(unsigned (&d)[4 / D::each], const unsigned (&a)[k / (2 * A::each)],
                     const unsigned (&b)[k / (4 * B::each)], const unsigned (&c)[4 / C::each], int line) {
  constexpr int each = A::each, side = 4 * each;  // elements of a row that the first registers of four lanes hold
  static_assert(each == B::each && (k == side || k == 2 * side), "mma has no such shape");
  constexpr int of_a = k / (2 * each), of_b = k / (4 * each);
  host_lane mine = {};
  for (int r = 0; r < of_a; ++r) mine.at[r] = a[r];
  for (int r = 0; r < of_b; ++r) mine.at[of_a + r] = b[r];
  const host_lane* lanes = host_exchange(host_whole_warp(line), mine, line);
  const int row = host_lane_id() / 4, columns = host_lane_id() % 4 * 2;
  for (unsigned& each_d : d) each_d = 0;
  for (int i = 0; i < 4; ++i) {
    const int lower = i / 2, column = columns + i % 2;
    auto sum = C::get(c[i / C::each], i % C::each);
    for (int p = 0; p < k; ++p) {
      const int right = p / side, lane = p % side / each, at = p % each;
      sum += A::get(lanes[4 * row + lane].at[lower + 2 * right], at) *
             B::get(lanes[4 * column + lane].at[of_a + right], at);
    }
    d[i / D::each] |= D::put(sum, i % D::each);
  }
}

// How many passes beyond one the matrices took: a pass reads all 32 banks of 4 bytes, and a row lies in four of them.
inline std::atomic<long> host_bank_conflicts{0};
inline void host_count_conflicts(const host_lane* rows) {
  int most = 1, in_banks[8] = {};
  for (int row = 0; row < 8; ++row) {
    bool is_new = true;
    for (int other = 0; other < row; ++other) is_new &= rows[other].at[0] != rows[row].at[0];
    if (is_new) most = max(most, ++in_banks[rows[row].at[0] / 16 % 8]);
  }
  host_bank_conflicts.fetch_add(most - 1, std::memory_order_relaxed);
}

// Matrices of 8 rows of 16 bytes. Lanes 8 * m to 8 * m + 7 give the addresses of the rows of matrix m.
template <int count, bool transposed>
inline void host_ldmatrix(unsigned (&to)[count], unsigned address, int line) {
  const int lane = host_lane_id(), quarter = lane % 4;
  if (lane < 8 * count) host_shared(address, 16, line);
  const host_lane* rows = host_exchange(host_whole_warp(line), {{address}}, line);
  if (lane < count) host_count_conflicts(rows + 8 * lane);
  for (int m = 0; m < count; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int row = transposed ? 2 * quarter + i : lane / 4, column = transposed ? lane / 4 : 2 * quarter + i;
      pair[i] = ((const uint16_t*)host_shared(rows[8 * m + row].at[0], 16, line))[column];
    }
    to[m] = pair[0] | (unsigned)pair[1] << 16;
  }
}

// ----------------------------------------------------------------------------------------------- asynchronous copies
enum host_cache { host_ca, host_cg };
struct host_copy { unsigned group; char* to; const void* from; unsigned bytes, whole; };
inline thread_local std::vector<host_copy> host_copies;  // that have not landed, the oldest first
inline thread_local unsigned host_groups = 0;            // that were committed

template <host_cache cache, unsigned whole>
inline void host_cp_async(unsigned to, const void* from, unsigned bytes, int line) {
  static_assert(whole == 16 || (cache == host_ca && (whole == 4 || whole == 8)), "cp.async has no such size");
  if (bytes > whole) host_fault("cp.async reads more than it writes", line);
  if ((uintptr_t)from % whole) host_fault("an address in global memory is not aligned", line);
  host_copies.push_back({host_groups, host_shared(to, whole, line), from, bytes, whole});
  memset(host_copies.back().to, 0xff, whole);
}
inline void host_commit_group() { ++host_groups; }

// The copies of groups before this one land.
inline void host_land(unsigned before) {
  size_t landed = 0;
  for (; landed < host_copies.size() && (int)(host_copies[landed].group - before) < 0; ++landed) {
    const host_copy& copy = host_copies[landed];
    memcpy(copy.to, copy.from, copy.bytes);
    memset(copy.to + copy.bytes, 0, copy.whole - copy.bytes);
  }
  host_copies.erase(host_copies.begin(), host_copies.begin() + landed);
}
inline void host_wait_group(unsigned pending) { host_land(host_groups - pending); }
inline void host_land_all() { host_land(host_groups + 1); }

template <size_t count>
inline void host_store_shared(unsigned to, const unsigned (&values)[count], int line) {
  memcpy(host_shared(to, sizeof values, line), values, sizeof values);
}

// ------------------------------------------------------------------------------------------------- products of bytes
template <typename A, typename B, typename T>
inline T host_dp4a(unsigned a, unsigned b, T sum) {
  for (int i = 0; i < 4; ++i) sum += A::get(a, i) * B::get(b, i);
  return sum;
}
inline int __dp4a(int a, int b, int sum) { return host_dp4a<host_s8, host_s8>(a, b, sum); }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) { return host_dp4a<host_u8, host_u8>(a, b, sum); }
