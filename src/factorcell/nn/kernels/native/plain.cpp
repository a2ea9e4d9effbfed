// The kernels for any processor.
#include "standard.inc"

#define SET plain
#define LANES 4
#if defined(__wasm__)
#define TOGETHER 2  // V8 keeps the sums of two rows in registers; with four rows, products take twice the time
#else
#define TOGETHER 4
#endif
#define FAST_L3 1
#include "set.inc"
