// What a caller hands over. Arrays are of floats, dense, row-major, unless it says otherwise; those marked ? may be null.
#pragma once

#include <cstdint>

// The adapted coupled-gate LSTM over all steps of a batch:
//
//   z = given_reduced[t] + g L        [i, f, o] = given[t] + b + s (W g) + z R        g = h feed
//   c = tanh(i) keep[t]    f = sigmoid(f + 1)    m = f m + (1 - f) c    h = tanh(m) sigmoid(o)
//
// W is shared, b, s, L, R and feed belong to each sequence. With layer normalisation i, f, o and, inside its tanh, m become
// gain (x - mean) / deviation + shift, over the H units.
// Shapes: B sequences, T steps, H hidden, R rank.
struct Recurrence {
    int64_t sequences, steps, hidden, rank;
    int64_t threads;
    int64_t half;  // whether products of W, L and R are of bfloat16 numbers, summed up as floats
    int64_t next;  // the job that the next free thread takes; zero at first

    const void *given;           // (B, T, 3H): the inputs' share of the gates; of bfloat16 where `half`
    const float *bias;           // (B, 3H)
    const float *given_reduced;  // (B, T, R)?: the inputs' share of z
    const float *weight;         // (H, 3H)
    const float *left;           // (B, H, R)?
    const float *right;          // (B, R, 3H)?
    const float *keep;           // (T, B, H)?: a factor on the candidate
    const float *norm;           // (8, H)?: gains of i, f, o, m, then their shifts
    const float *scale;          // (B, 3H)?: s, a factor on the product of W
    const float *feed;           // (B, H)?: a factor on h where it goes back into the products
    const float *first_hidden;   // (B, H)
    const float *first_memory;   // (B, H)
    const int64_t *lengths;      // (B,)?: steps of each sequence; after them its state stands still, and outputs are zero

    float *outputs;      // (B, T, H): h
    float *last_hidden;  // (B, H)
    float *last_memory;  // (B, H)
    float *memories;     // (B, T, H)?: m; this and the next three are what the way back needs
    float *gates;        // (B, T, 3H)?: tanh(i), sigmoid(f + 1), sigmoid(o); with normalisation i, f, o normalised
    float *reduced;      // (B, T, R)?: z
    float *inverse;      // (B, T, 3)?: 1 / deviation of i, f, o

    const float *outputs_gradient;      // (B, T, H)?
    const float *last_hidden_gradient;  // (B, H)?
    const float *last_memory_gradient;  // (B, H)?
    void *given_gradient;               // (B, T, 3H); of bfloat16 where `half`
    float *bias_gradient;               // (B, 3H)
    float *reduced_gradient;            // (B, T, R)?: of z
    float *first_hidden_gradient;       // (B, H)
    float *first_memory_gradient;       // (B, H)
    float *norm_gradient;               // (B, 8, H)?
};

// The logarithm of the sum of exp(x . e_v + b_v) over a vocabulary. Shapes: N rows, V vocabulary, D width, C texts, to
// each of which N / C rows belong, one text after the other.
struct Softmax {
    int64_t rows, size, width, texts;
    int64_t threads;
    int64_t half;
    int64_t next;
    const float *values;  // (N, D): x
    const float *table;   // (V, D): e
    const float *bias;    // (C, V): may be -inf
    float *packed;        // room for `factorcell_packed` floats
    float *result;        // (N,)
};

// Steps of Adam on rows of a table and its moments, in place. Shapes: U rows, D width.
struct Rows {
    int64_t rows, width;
    int64_t threads;
    int64_t next;
    const int64_t *index;    // (U,): different rows
    float *table;            // (V, D)
    float *first;            // (V, D): m
    float *second;           // (V, D): v
    const float *columns;    // (U, 5)?: for rows that catch up
    const float *gradient;   // (U, D)?: for a step
    const float *constants;  // (6,)?: for a step
};
