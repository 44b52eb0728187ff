/* A blocked matrix multiply that times itself; c_flags.py compiles it with -DBI, -DBJ, -DBK (block sizes).

   usage: c_flags INPUT OUTPUT SAMPLES
   INPUT holds A and B, OUTPUT receives C = A B (N x N floats each, row by row); prints SAMPLES times in seconds. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N 256

static float a[N][N], b[N][N], c[N][N];

static void multiply(void) {
    memset(c, 0, sizeof c);
    for (int i0 = 0; i0 < N; i0 += BI)
        for (int k0 = 0; k0 < N; k0 += BK)
            for (int j0 = 0; j0 < N; j0 += BJ)
                for (int i = i0; i < i0 + BI; i++)
                    for (int k = k0; k < k0 + BK; k++)
                        for (int j = j0; j < j0 + BJ; j++)
                            c[i][j] += a[i][k] * b[k][j];
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    FILE *input = fopen(argv[1], "rb");
    if (!input || fread(a, sizeof a, 1, input) != 1 || fread(b, sizeof b, 1, input) != 1) return 3;
    multiply(); /* once to warm up */
    for (int i = atoi(argv[3]); i > 0; i--) {
        double start = now();
        multiply();
        printf("%.9f\n", now() - start);
    }
    FILE *output = fopen(argv[2], "wb");
    if (!output || fwrite(c, sizeof c, 1, output) != 1 || fclose(output)) return 3;
    return 0;
}
