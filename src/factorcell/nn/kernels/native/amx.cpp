// The kernels for AVX-512 with products and tiles of bfloat16 (AMX).
#include "standard.inc"

#if defined(WIDE)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx512bf16,fma,prefer-vector-width=512")
#define SET amx
#define LANES 16
#define TOGETHER 8
#define FAST_L3 0
#define DOT_BF16 1
#define TILES 1
#include "set.inc"
#endif
