// The kernels for any processor.
#include "standard.inc"

#define SET plain
#define LANES 4
#define TOGETHER 4
#define FAST_L3 1
#include "set.inc"
