// The adapted recurrence for the instruction sets of x86-64, and one that any processor runs; chosen while running.
#include "recurrence.h"

#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

namespace plain {
#define LANES 4
#define TOGETHER 4
#include "recurrence_lanes.inc"
#undef LANES
#undef TOGETHER
}  // namespace plain

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE 1
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LANES 8
#define TOGETHER 4
#include "recurrence_lanes.inc"
#undef LANES
#undef TOGETHER
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=512")
namespace avx512 {
#define LANES 16
#define TOGETHER 8
#include "recurrence_lanes.inc"
#undef LANES
#undef TOGETHER
}  // namespace avx512
#pragma GCC pop_options
#endif

namespace {

// Numbers too small to matter cost a hundred times the time of others: they count as zero while a kernel runs.
struct FlushTiny {
#if defined(__x86_64__)
    FlushTiny() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }
    ~FlushTiny() { _mm_setcsr(before); }
    unsigned before;
#endif
};

void take_jobs(Recurrence *a, bool backward, int variant) {
    FlushTiny flush;
#if defined(WIDE)
    if (variant == 2) return avx512::work(*a, backward);
    if (variant == 1) return avx2::work(*a, backward);
#endif
    (void)variant;
    plain::work(*a, backward);
}

}  // namespace

extern "C" {

// 0: plain, 1: AVX2, 2: AVX-512: the best that this processor has.
int factorcell_best() {
#if defined(WIDE)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// Forward or backward, on `a->threads` threads, this one among them; `variant` as factorcell_best() or less.
void factorcell_recurrence(Recurrence *a, int backward, int variant) {
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < a->threads; i++) others.emplace_back(take_jobs, a, backward, variant);
    } catch (const std::system_error &) {
        // No more threads to be had: those that there are take all jobs.
    }
    take_jobs(a, backward, variant);
    for (auto &other : others) other.join();
}
}
