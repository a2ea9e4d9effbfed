// The kernels for AVX-512 with products of bfloat16.
#include "standard.inc"

#if defined(WIDE)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx512bf16,fma,prefer-vector-width=512")
#define SET avx512_bf16
#define LANES 16
#define TOGETHER 8
#define FAST_L3 1
#define DOT_BF16 1
#include "set.inc"
#endif
