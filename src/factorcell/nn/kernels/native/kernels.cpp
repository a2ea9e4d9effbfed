// Runs the kernels of the instruction set that the caller selects, on several threads. Each set has its own file.
#include "sets.h"

#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace {

// Denormal numbers are a hundred times slower than others, so they count as zero while a kernel runs.
struct FlushTiny {
#if defined(__x86_64__)
    FlushTiny() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }
    ~FlushTiny() { _mm_setcsr(before); }
    unsigned before;
#endif
};

template <class Arguments> using Work = void (*)(Arguments &, bool);

// The work that several threads share. `other_way` is the second argument of `work`, such as whether to run backward;
// `failed` is set if a thread cannot allocate memory.
template <class Arguments> struct Crew {
    Arguments *a;
    bool other_way;
    Work<Arguments> work;
    bool failed;
};

// The body of a thread: process jobs; if memory cannot be allocated, set `failed` and end.
template <class Arguments> void take_jobs(void *argument) {
    FlushTiny flush;
    auto *crew = static_cast<Crew<Arguments> *>(argument);
    try {
        crew->work(*crew->a, crew->other_way);
    } catch (const std::bad_alloc &) {
        __atomic_store_n(&crew->failed, true, __ATOMIC_RELAXED);
    }
}

// The function that runs work on the threads of PyTorch, if PyTorch uses GNU's OpenMP library. These threads spin for a
// while between the products of PyTorch, so additional threads would have to share cores with them. A forked process has
// none of these threads.
using Team = void (*)(void (*)(void *), void *, unsigned, unsigned);
const Team shared_team = reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
const pid_t home = getpid();

// Run `work` on `a->threads` threads, including this one; return whether a thread could not allocate memory.
template <class Arguments> bool run(Arguments *a, bool other_way, Work<Arguments> work) {
    a->next = 0;
    Crew<Arguments> crew{a, other_way, work, false};
    if (a->threads > 1 && shared_team && getpid() == home) {
        shared_team(take_jobs<Arguments>, &crew, static_cast<unsigned>(a->threads), 0);
        return crew.failed;
    }
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < a->threads; i++) others.emplace_back(take_jobs<Arguments>, &crew);
    } catch (const std::exception &) {
        // The system refuses more threads: the existing ones process all jobs.
    }
    take_jobs<Arguments>(&crew);
    for (auto &other : others) other.join();
    return crew.failed;
}

// Indexed by the numbers of `factorcell_best`.
#if defined(WIDE)
const Kernels *const SETS[] = {&plain::kernels, &avx2::kernels, &avx512::kernels, &avx512_bf16::kernels,
                               &amx::kernels};
#else
const Kernels *const SETS[] = {&plain::kernels};
#endif

#if defined(WIDE)
// Whether the processor has tiles of bfloat16 and of bytes, and Linux grants them to this process, which must ask for them.
bool has_tiles() {
#if defined(__linux__)
    const long ask_permission = 0x1023, tile_data = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    const unsigned required = 1u << 22 | 1u << 24 | 1u << 25;  // bits: bfloat16 tiles, tiles, byte tiles
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & required) != required) return false;
    static const bool allowed = syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
    return allowed;
#else
    return false;
#endif
}
#endif

}  // namespace

const Kernels &kernels_of(int variant) { return *SETS[variant]; }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

extern "C" {

// The best instruction set of this processor; 0: plain, 1: AVX2, 2: AVX-512, 3: AVX-512 with bfloat16 products, 4: the same
// with tiles (AMX).
int factorcell_best() {
#if defined(WIDE)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return !__builtin_cpu_supports("avx512bf16") ? 2 : has_tiles() ? 4 : 3;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// The size of `packed` in floats: for W in one direction, for the table of a softmax, and for a softmax's backward pass.
int64_t factorcell_packed_weight(const Recurrence *a, int backward, int variant) {
    return SETS[variant]->packed_weight(*a, backward != 0);
}

int64_t factorcell_packed_table(const Softmax *a, int variant) { return SETS[variant]->packed_table(*a); }

int64_t factorcell_softmax_room(const Softmax *a, int variant) { return SETS[variant]->gradient_room(*a); }

// All other functions return 1 if they could not allocate memory, and 0 otherwise; after a 1 their output is invalid.
// `variant` is the instruction set, at most factorcell_best().

// Run the recurrence forward or backward.
int factorcell_recurrence(Recurrence *a, int backward, int variant) {
    return run(a, backward != 0, SETS[variant]->recurrence);
}

// Pack `weight` into `packed` for calls in one direction, on this thread only.
int factorcell_recurrence_pack(Recurrence *a, int backward, int variant) {
    Crew<Recurrence> crew{a, backward != 0, SETS[variant]->recurrence_pack, false};
    take_jobs<Recurrence>(&crew);
    return crew.failed;
}

// Pack the table, then compute the log sums of a softmax.
int factorcell_softmax(Softmax *a, int variant) {
    return run(a, true, SETS[variant]->softmax) || run(a, false, SETS[variant]->softmax);
}

// Pack the table only, for any number of drawings.
int factorcell_softmax_pack(Softmax *a, int variant) { return run(a, true, SETS[variant]->softmax); }

// Choose the next tokens of texts.
int factorcell_drawing(Drawing *a, int variant) { return run(a, false, SETS[variant]->drawing); }

// Compute the gradients of a softmax: first by parts of the vocabulary, then the sums of the parts' contributions to the
// gradient of each row.
int factorcell_softmax_gradient(Softmax *a, int variant) {
    return run(a, false, SETS[variant]->softmax_gradient) ||
           (a->values_gradient && run(a, true, SETS[variant]->softmax_gradient));
}

// Process the requests of `a`, each on one thread: search completions or, if `following`, compute the states after
// `input_tokens`.
int factorcell_search(Search *a, int following, int variant) { return run(a, following != 0, SETS[variant]->search); }

// Compute the nats of texts and their gradients in the vectors of users.
int factorcell_learning(Learning *a, int variant) { return run(a, false, SETS[variant]->learning); }

// Apply steps of Adam to rows: if `catching_up`, all steps that a row missed, otherwise one step with a gradient.
int factorcell_rows(Rows *a, int catching_up, int variant) { return run(a, catching_up != 0, SETS[variant]->rows); }
}
