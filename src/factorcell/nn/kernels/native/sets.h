// The kernels of each instruction set: several of x86-64, and one for any processor.
#pragma once

#include "kernels.h"

// What a user determines in a search: fields of a `Request`.
struct PackedUser {
    float *gate_bias, *left_inputs, *left, *right, *bias;
};

// The functions of one instruction set. The second argument selects one of two computations, which kernels.cpp describes.
struct Kernels {
    void (*recurrence)(Recurrence &, bool);
    void (*recurrence_pack)(Recurrence &, bool);
    void (*softmax)(Softmax &, bool);
    void (*softmax_gradient)(Softmax &, bool);
    void (*drawing)(Drawing &, bool);
    void (*rows)(Rows &, bool);
    void (*search)(Search &, bool);
    void (*learning)(Learning &, bool);
    int64_t (*packed_weight)(const Recurrence &, bool);
    int64_t (*packed_table)(const Softmax &);
    int64_t (*gradient_room)(const Softmax &);
    // These pack the arrays of a search.
    void (*pack_matrix)(int64_t rows, int64_t columns, const float *from, float *to);
    void (*pack_gate_matrix)(int64_t hidden, int64_t rows, const float *from, float *to);
    void (*pack_user)(const Learning &, const PackedUser &);
    int64_t lanes;  // floats in a vector
};

namespace plain { extern const Kernels kernels; }

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE 1
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace avx512_bf16 { extern const Kernels kernels; }
namespace amx { extern const Kernels kernels; }
#endif

// The kernels of an instruction set by its number, as `factorcell_best` counts them.
const Kernels &kernels_of(int variant);

// Seconds on a monotonic clock.
double now();
