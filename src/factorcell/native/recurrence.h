// The adapted coupled-gate LSTM over all steps of a batch: what the caller hands over.
//
//   [i, f, o] = given[t] + W h + L R h        W is shared, L and R belong to each sequence
//   c = tanh(i) keep[t]    f = sigmoid(f + 1)    m = f m + (1 - f) c    h = tanh(m) sigmoid(o)
//
// Shapes: B sequences, T steps, H hidden, R rank. Arrays are of floats, dense, row-major; those marked ? may be null.
#pragma once

#include <cstdint>

struct Recurrence {
    int64_t sequences, steps, hidden, rank;
    int64_t threads;
    int64_t next;  // the job that the next free thread takes; zero at first

    const float *given;         // (B, T, 3H): the inputs' share of the gates, bias included
    const float *weight;        // (H, 3H)
    const float *left;          // (B, H, R)?
    const float *right;         // (B, R, 3H)?
    const float *keep;          // (T, B, H)?: a factor on the candidate
    const float *first_hidden;  // (B, H)
    const float *first_memory;  // (B, H)

    float *outputs;   // (B, T, H): h
    float *memories;  // (B, T, H): m
    float *gates;     // (B, T, 3H): tanh(i), sigmoid(f + 1), sigmoid(o)
    float *reduced;   // (B, T, R)?: h L, with the h before the step

    const float *outputs_gradient;      // (B, T, H)
    const float *last_memory_gradient;  // (B, H)
    float *given_gradient;              // (B, T, 3H)
    float *reduced_gradient;            // (B, T, R)?: the gates' gradient times R'
    float *first_hidden_gradient;       // (B, H)
    float *first_memory_gradient;       // (B, H)
};
