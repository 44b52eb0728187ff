/* What is checked before any kernel runs: the instructions of this CPU, and the SHA-256 of the constants. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "program.h"

/* Instruction set extensions, by LLVM's names. Those that are not in the table are no kernel's. */

#if defined(__x86_64__)

enum { EAX, EBX, ECX, EDX };

/* What the system has to save of a thread, in the bits of XCR0. */
enum { PLAIN = 0, AVX = 0x6, AVX512 = 0xe6, TILES = 0x60000 };

static const struct {
  const char *name;
  uint32_t leaf, subleaf, word, bit, state;
} known[] = {
    {"sse2", 1, 0, EDX, 26, PLAIN},         {"sse3", 1, 0, ECX, 0, PLAIN},
    {"pclmul", 1, 0, ECX, 1, PLAIN},        {"ssse3", 1, 0, ECX, 9, PLAIN},
    {"fma", 1, 0, ECX, 12, AVX},            {"sse4.1", 1, 0, ECX, 19, PLAIN},
    {"sse4.2", 1, 0, ECX, 20, PLAIN},       {"movbe", 1, 0, ECX, 22, PLAIN},
    {"popcnt", 1, 0, ECX, 23, PLAIN},       {"aes", 1, 0, ECX, 25, PLAIN},
    {"xsave", 1, 0, ECX, 26, PLAIN},        {"avx", 1, 0, ECX, 28, AVX},
    {"f16c", 1, 0, ECX, 29, AVX},           {"bmi", 7, 0, EBX, 3, PLAIN},
    {"avx2", 7, 0, EBX, 5, AVX},            {"bmi2", 7, 0, EBX, 8, PLAIN},
    {"avx512f", 7, 0, EBX, 16, AVX512},     {"avx512dq", 7, 0, EBX, 17, AVX512},
    {"adx", 7, 0, EBX, 19, PLAIN},          {"avx512ifma", 7, 0, EBX, 21, AVX512},
    {"avx512cd", 7, 0, EBX, 28, AVX512},    {"sha", 7, 0, EBX, 29, PLAIN},
    {"avx512bw", 7, 0, EBX, 30, AVX512},    {"avx512vl", 7, 0, EBX, 31, AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, AVX512},   {"avx512vbmi2", 7, 0, ECX, 6, AVX512},
    {"gfni", 7, 0, ECX, 8, PLAIN},          {"vaes", 7, 0, ECX, 9, AVX},
    {"vpclmulqdq", 7, 0, ECX, 10, AVX},     {"avx512vnni", 7, 0, ECX, 11, AVX512},
    {"avx512bitalg", 7, 0, ECX, 12, AVX512}, {"avx512vpopcntdq", 7, 0, ECX, 14, AVX512},
    {"amx-bf16", 7, 0, EDX, 22, TILES},     {"avx512fp16", 7, 0, EDX, 23, AVX512},
    {"amx-tile", 7, 0, EDX, 24, TILES},     {"amx-int8", 7, 0, EDX, 25, TILES},
    {"avxvnni", 7, 1, EAX, 4, AVX},         {"avx512bf16", 7, 1, EAX, 5, AVX512},
    {"amx-fp16", 7, 1, EAX, 21, TILES},     {"lzcnt", 0x80000001, 0, ECX, 5, PLAIN},
    {"prfchw", 0x80000001, 0, ECX, 8, PLAIN},
};

static bool has(size_t i) {
  uint32_t words[4] = {0};
  if (!__get_cpuid_count(known[i].leaf, known[i].subleaf, &words[EAX], &words[EBX], &words[ECX], &words[EDX]))
    return false;
  if (!(words[known[i].word] >> known[i].bit & 1)) return false;
  if (!known[i].state) return true;
  if (!__get_cpuid_count(1, 0, &words[EAX], &words[EBX], &words[ECX], &words[EDX])) return false;
  if (!(words[ECX] >> 27 & 1)) return false; /* OSXSAVE */
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & known[i].state) == known[i].state;
}

#elif defined(__aarch64__) && defined(__linux__)

static const struct {
  const char *name;
  unsigned long kind;
  uint32_t bit;
} known[] = {
    {"neon", AT_HWCAP, 1},  {"aes", AT_HWCAP, 3},      {"pmull", AT_HWCAP, 4}, {"sha2", AT_HWCAP, 6},
    {"crc", AT_HWCAP, 7},   {"lse", AT_HWCAP, 8},      {"fullfp16", AT_HWCAP, 10}, {"rdm", AT_HWCAP, 12},
    {"dotprod", AT_HWCAP, 20}, {"fp16fml", AT_HWCAP, 23}, {"sve", AT_HWCAP, 22}, {"sve2", AT_HWCAP2, 1},
    {"i8mm", AT_HWCAP2, 13}, {"bf16", AT_HWCAP2, 14},
};

static bool has(size_t i) { return getauxval(known[i].kind) >> known[i].bit & 1; }

#else

static const struct {
  const char *name;
} known[] = {{""}};

static bool has(size_t i) { return (void)i, true; }

#endif

static bool lacks(const char *name) {
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!strcmp(known[i].name, name)) return !has(i);
  }
  return false;
}

bool sd_check_features(const char *const *features) {
  char text[300] = "";
  for (; *features; features++) {
    const size_t used = strlen(text);
    if (lacks(*features)) snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "", *features);
  }
  if (*text) sd_fail("%s: this CPU lacks %s", sd_the_program.name, text);
  return !*text;
}

bool sd_permit_units(const char *const *units) {
#if defined(__linux__) && defined(__x86_64__)
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  for (; *units; units++) {
    if (strcmp(*units, "amx-tile")) continue;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) {
      sd_fail("%s: needs tile registers, and the operating system does not permit them", sd_the_program.name);
      return false;
    }
  }
#else
  (void)units;
#endif
  return true;
}

/* SHA-256, FIPS 180-4. */

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotated(uint32_t value, int by) { return value >> by | value << (32 - by); }

/* One round. The caller names the variables in another order for the next one, so that nothing is moved. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                      \
  do {                                                                                                        \
    const uint32_t one = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + (g ^ (e & (f ^ g))) + rounds[i] + w[i]; \
    d += one;                                                                                                 \
    h = one + (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) | (c & (a | b)));                  \
  } while (0)

static void add_blocks(uint32_t state[8], const uint8_t *data, uint64_t blocks) {
  for (; blocks; blocks--, data += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
      const uint8_t *at = data + 4 * i;
      w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
      const uint32_t x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + (rotated(x, 7) ^ rotated(x, 18) ^ x >> 3) + w[i - 7] +
             (rotated(y, 17) ^ rotated(y, 19) ^ y >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 8) {
      ROUND(a, b, c, d, e, f, g, h, i);
      ROUND(h, a, b, c, d, e, f, g, i + 1);
      ROUND(g, h, a, b, c, d, e, f, i + 2);
      ROUND(f, g, h, a, b, c, d, e, i + 3);
      ROUND(e, f, g, h, a, b, c, d, i + 4);
      ROUND(d, e, f, g, h, a, b, c, i + 5);
      ROUND(c, d, e, f, g, h, a, b, i + 6);
      ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__)
/* The same with the CPU's own instructions, which do four rounds at a time. */
__attribute__((target("sha,sse4.1,ssse3"))) static void add_blocks_fast(uint32_t state[8], const uint8_t *data,
                                                                        uint64_t blocks) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; blocks; blocks--, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + i), order);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      if (i >= 4) {
        const __m128i middle = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), middle);
        w[i % 4] = _mm_sha256msg2_epu32(sum, w[(i + 3) % 4]);
      }
      const __m128i added = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)rounds + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);
  high = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}
#endif

void sd_sha256(const void *data, uint64_t bytes, char digest[65]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  void (*add)(uint32_t[8], const uint8_t *, uint64_t) = add_blocks;
#if defined(__x86_64__)
  if (!lacks("sha") && !lacks("sse4.1") && !lacks("ssse3")) add = add_blocks_fast;
#endif
  add(state, data, bytes / 64);
  uint8_t last[128] = {0};
  const size_t rest = bytes % 64, end = rest < 56 ? 64 : 128;
  if (rest) memcpy(last, (const uint8_t *)data + (bytes - rest), rest);
  last[rest] = 0x80;
  for (int i = 0; i < 8; i++) last[end - 1 - (size_t)i] = (uint8_t)(bytes * 8 >> 8 * i);
  add(state, last, end / 64);
  for (int i = 0; i < 8; i++) snprintf(digest + 8 * i, 9, "%08x", (unsigned)state[i]);
}
