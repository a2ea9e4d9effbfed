// The kernels for AVX-512.
#include "standard.inc"

#if defined(WIDE)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=512")
#define SET avx512
#define LANES 16
#define TOGETHER 8
#define FAST_L3 0
#include "set.inc"
#endif
