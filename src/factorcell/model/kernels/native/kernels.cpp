// The compiled kernels, for the instruction sets of x86-64 and one that any processor runs; chosen while running.
#include "kernels.h"

#include <math.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

namespace {

// Seconds on a clock that never goes back.
double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

namespace plain {
#define LANES 4
#define TOGETHER 4
#include "vectors.inc"
#include "recurrence.inc"
#include "softmax.inc"
#include "rows.inc"
#include "search.inc"
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
#include "vectors.inc"
#include "recurrence.inc"
#include "softmax.inc"
#include "rows.inc"
#include "search.inc"
#undef LANES
#undef TOGETHER
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma,prefer-vector-width=512")
namespace avx512 {
#define LANES 16
#define TOGETHER 8
#include "vectors.inc"
#include "recurrence.inc"
#include "softmax.inc"
#include "rows.inc"
#include "search.inc"
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx512bf16,fma,prefer-vector-width=512")
namespace avx512_bf16 {
#define DOT_BF16 1
#include "vectors.inc"
#include "recurrence.inc"
#include "softmax.inc"
#include "rows.inc"
#include "search.inc"
#undef DOT_BF16
#undef LANES
#undef TOGETHER
}  // namespace avx512_bf16
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

template <class Arguments> using Work = void (*)(Arguments &, bool);

// A thread that has too little work memory ends, and says so.
template <class Arguments>
void take_jobs(Arguments *a, bool other_way, Work<Arguments> work, bool *failed) {
    FlushTiny flush;
    try {
        work(*a, other_way);
    } catch (const std::bad_alloc &) {
        __atomic_store_n(failed, true, __ATOMIC_RELAXED);
    }
}

// Run `work` on `a->threads` threads, this one among them; whether memory was too little for one of them.
template <class Arguments> bool run(Arguments *a, bool other_way, Work<Arguments> work) {
    a->next = 0;
    bool failed = false;
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < a->threads; i++)
            others.emplace_back(take_jobs<Arguments>, a, other_way, work, &failed);
    } catch (const std::exception &) {
        // No more threads to be had: those that there are take all jobs.
    }
    take_jobs(a, other_way, work, &failed);
    for (auto &other : others) other.join();
    return failed;
}

#if defined(WIDE)
const Work<Recurrence> RECURRENCE[] = {plain::recurrence_work, avx2::recurrence_work, avx512::recurrence_work,
                                       avx512_bf16::recurrence_work};
const Work<Softmax> SOFTMAX[] = {plain::softmax_work, avx2::softmax_work, avx512::softmax_work,
                                 avx512_bf16::softmax_work};
const Work<Rows> ROWS[] = {plain::rows_work, avx2::rows_work, avx512::rows_work, avx512_bf16::rows_work};
const Work<Search> SEARCH[] = {plain::search_work, avx2::search_work, avx512::search_work, avx512_bf16::search_work};
const Work<Recurrence> PACK[] = {plain::recurrence_pack, avx2::recurrence_pack, avx512::recurrence_pack,
                                 avx512_bf16::recurrence_pack};
int64_t (*const PACKED_WEIGHT[])(const Recurrence &, bool) = {plain::packed_weight, avx2::packed_weight,
                                                              avx512::packed_weight, avx512_bf16::packed_weight};
int64_t (*const PACKED_TABLE[])(const Softmax &) = {plain::packed_table, avx2::packed_table, avx512::packed_table,
                                                    avx512_bf16::packed_table};
#else
const Work<Recurrence> RECURRENCE[] = {plain::recurrence_work};
const Work<Softmax> SOFTMAX[] = {plain::softmax_work};
const Work<Rows> ROWS[] = {plain::rows_work};
const Work<Search> SEARCH[] = {plain::search_work};
const Work<Recurrence> PACK[] = {plain::recurrence_pack};
int64_t (*const PACKED_WEIGHT[])(const Recurrence &, bool) = {plain::packed_weight};
int64_t (*const PACKED_TABLE[])(const Softmax &) = {plain::packed_table};
#endif

}  // namespace

extern "C" {

// 0: plain, 1: AVX2, 2: AVX-512, 3: AVX-512 with products of bfloat16: the best that this processor has.
int factorcell_best() {
#if defined(WIDE)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// How many floats `packed` must hold: W for calls in that direction, and the table of a softmax.
int64_t factorcell_packed_weight(const Recurrence *a, int backward, int variant) {
    return PACKED_WEIGHT[variant](*a, backward != 0);
}

int64_t factorcell_packed_table(const Softmax *a, int variant) { return PACKED_TABLE[variant](*a); }

// All others return whether work memory was too little; then what is out is of no use. `variant` as factorcell_best() or less.

// Forward or backward.
int factorcell_recurrence(Recurrence *a, int backward, int variant) { return run(a, backward != 0, RECURRENCE[variant]); }

// `packed` from `weight`, for calls in that direction; by this thread alone.
int factorcell_recurrence_pack(Recurrence *a, int backward, int variant) {
    bool failed = false;
    take_jobs(a, backward != 0, PACK[variant], &failed);
    return failed;
}

// The table is packed first.
int factorcell_softmax(Softmax *a, int variant) {
    return run(a, true, SOFTMAX[variant]) || run(a, false, SOFTMAX[variant]);
}

// The requests of `a`, each by one thread: what follows, or (`following`) what is held after given tokens.
int factorcell_search(Search *a, int following, int variant) { return run(a, following != 0, SEARCH[variant]); }

// Rows that catch up, or their step.
int factorcell_rows(Rows *a, int catching_up, int variant) { return run(a, catching_up != 0, ROWS[variant]); }
}
