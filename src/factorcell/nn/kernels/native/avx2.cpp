// The kernels for AVX2.
#include "standard.inc"

#if defined(WIDE)
#pragma GCC target("avx2,fma")
#define SET avx2
#define LANES 8
#define TOGETHER 4
#define FAST_L3 1
#include "set.inc"
#endif
