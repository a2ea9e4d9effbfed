// The kernels for AVX2.
#include "standard.inc"

#if defined(WIDE)
#pragma GCC target("avx2,fma")
#define SET avx2
#define LANES 8
#define TOGETHER 4
#include "set.inc"
#endif
