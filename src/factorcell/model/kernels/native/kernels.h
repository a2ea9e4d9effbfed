// What a caller hands over. Arrays are of floats, dense, row-major, unless it says otherwise; those marked ? may be null.
// signatures.py says the same in tables, and checks all of it before each call: nothing is checked here.
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
    float *packed;               // ?: the weight as `factorcell_recurrence_pack` leaves it for this direction
    const void *left;            // (B, H, R)?; of bfloat16 where `half`
    const void *right;           // (B, R, 3H)?; of bfloat16 where `half`
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

// The logarithm of the sum of exp(x . e_v + b_v) over a vocabulary, and on the way back gradients of it less the target's
// x . e_t + b_t. Shapes: N rows, V vocabulary, D width, C texts, to each of which N / C rows belong, one text after the other.
struct Softmax {
    int64_t rows, size, width, texts;
    int64_t parts;  // of the vocabulary, on the way back: its jobs
    int64_t threads;
    int64_t half;
    int64_t next;
    const float *values;  // (N, D): x
    const float *table;   // (V, D): e
    const float *bias;    // (C, V): may be -inf
    float *packed;        // room for `factorcell_packed_table` floats, or on the way back `factorcell_softmax_room`
    float *result;        // (N,): the logarithms; on the way back they are given
    float *logits;        // (N, V)?: kept on the way there, and on the way back not made again

    const int64_t *targets;  // (N,)?: t, V for none of them; this and what follows is of the way back
    const float *scale;      // (N,)?: the gradient of what each row's loss is
    float *values_gradient;  // (N, D)?
    float *table_gradient;   // (V, D)?
    float *bias_gradient;    // (C, V)?: zero at first
};

// Next tokens of texts under way, by the softmax of x . e_v + b_v: those drawn at given places of the running sum of the
// allowed tokens' weights, or else the likeliest. Log probabilities are those of the softmax over all tokens.
// Shapes: N texts, V vocabulary, D width, C contexts, S tokens for each text, A tokens that never come, M that may not come
// after some text.
struct Drawing {
    double temperature, share;  // of the weights; of their sum, the fewest tokens that hold it are drawn among
    int64_t texts, size, width, contexts;
    int64_t count, never, barred;
    int64_t top;  // so many of the likeliest are drawn among; 0: all
    int64_t end;  // the token that comes where none is allowed
    int64_t threads;
    int64_t half;
    int64_t next;
    const float *values;     // (N, D): x
    float *packed;           // e, as `factorcell_softmax_pack` leaves it
    const float *bias;       // (C, V): may be -inf
    const int64_t *context;  // (N,): which bias a text has
    const int64_t *banned;   // (A,)
    const int64_t *ends;     // (N,): where in `again` the tokens of each text end
    const int64_t *again;    // (M,)
    const double *places;    // (N, S)?: in [0, 1)
    int64_t *tokens;         // out (N, S)
    float *logs;             // out (N, S)
};

// Steps of Adam on rows of a table and its moments, in place. Shapes: U rows, V size, D width.
struct Rows {
    int64_t rows, size, width;
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

// Completions of typed texts by the adapted coupled-gate LSTM (as above, without `keep`, `scale` and `feed`):
//
//   log p(v | x, h) = log softmax(E P h + a)        [i, f, o] = b + [x, h] W + ([x, h] L) R
//
// Matrices of N rows are packed in panels of 3 vectors of columns, [panel][word of rows][column], with zeros behind the
// last row and column; the columns of gates are in the order [panel of hidden units][gate][unit]. Those called short have words
// of two bfloat16. What is after a token is one row: h, m and the log probabilities of the next token.
// Shapes: V vocabulary, E embedding, H hidden, R rank, k completions.
struct Request {
    double seconds;   // for the search, may be infinite, and lowered while it runs; out: what is left of them
    double lost;      // out: the best hypothesis that was dropped for want of time or room; -infinity: none
    int64_t k;        // at most so many completions
    int64_t most;     // tokens of a completion at most; of given tokens, how many
    int64_t empty;    // whether what is typed counts as a completion of itself
    int64_t rows;     // hypotheses expanded at most
    int64_t waiting;  // hypotheses that wait at most
    int64_t count;     // out: completions found
    int64_t expanded;  // out: hypotheses expanded

    const float *gate_bias;    // b, in the order of gates
    const float *left_inputs;  // (E, R)?: L of x
    const float *left;         // (H, R)?: L of h
    const float *right;        // (R, 3H)?
    const float *short_left;   // L of h; needed where products are not of floats
    const float *short_right;  // of two bfloat16 a word
    const float *bias;   // a (V,), -inf up to a whole panel
    const float *start;  // (2H + V,): after what is typed
    double *scores;      // out (k,): log probabilities; in no order
    int32_t *lengths;    // out (k,)
    int32_t *tokens;     // out (k, most)
    const int64_t *given;  // (most,)?: the tokens to follow
    float *after;        // out (most, 2H + V)?: after each of the tokens given
};

struct Search {
    double margin;  // nats by which errors of short products may differ: so much below the best is looked for
    int64_t requests, size, width, hidden, rank;
    int64_t end;  // the token that ends a text; those before it never come
    int64_t threads;
    int64_t batch;   // hypotheses expanded at once, at first
    int64_t growth;  // a batch grows by one for so many expanded
    int64_t products;  // by which hypotheses are found: of 0 floats, 1 bfloat16
    int64_t next;
    Request *request;          // (requests,)
    const float *embedding;    // (V, E), dense
    const float *inputs;       // (E, 3H): W of x
    const float *weight;       // (H, 3H): W of h
    const float *short_weight;  // W of h; needed where products are not of floats
    const float *norm;         // (8, H)?, dense
    const float *projection;   // (H, E): P
    const float *table;        // (E, V): E transposed
};
