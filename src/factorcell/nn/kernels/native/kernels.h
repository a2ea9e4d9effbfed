// The arguments of the compiled functions. Arrays are dense, row-major and of floats unless stated otherwise; arrays
// marked ? may be null. The compiled code checks nothing: signatures.py describes the same structures and checks every
// call.
#pragma once

#include <cstdint>

// The adapted coupled-gate LSTM over all steps of a batch:
//
//   z = input_reduced[t] + g L    [i, f, o] = input_gates[t] + b + s (W g) + z R    g = h feed
//   c = tanh(i) keep[t]    f = sigmoid(f + 1)    m = f m + (1 - f) c    h = tanh(m) sigmoid(o)
//
// All sequences share W; each has its own b, s, L, R and feed. c is the candidate, and m the memory. Layer normalization
// replaces each x of i, f, o and the m inside the tanh by gain (x - mean) / deviation + shift, over the H units.
// Shapes: B sequences, T steps, H hidden, R rank.
struct Recurrence {
    int64_t sequences, steps, hidden, rank;
    int64_t threads;
    int64_t half;  // whether products with W, L and R multiply bfloat16; sums are floats
    int64_t next;  // the job that the next free thread takes; zero at first

    const void *input_gates;     // (B, T, 3H): contribution of the inputs to the gates; bfloat16 if `half`
    const float *bias;           // (B, 3H)
    const float *input_reduced;  // (B, T, R)?: contribution of the inputs to z
    const float *weight;         // (H, 3H)
    float *packed;               // ?: the weight as `factorcell_recurrence_pack` packs it for this direction
    const void *left;            // (B, H, R)?; bfloat16 if `half`
    const void *right;           // (B, R, 3H)?; bfloat16 if `half`
    const float *keep;           // (T, B, H)?: dropout factor on the candidate
    const float *norm;           // (8, H)?: gains of i, f, o, m, then their shifts
    const float *scale;          // (B, 3H)?: s, a factor on the product with W
    const float *feed;           // (B, H)?: dropout factor on h in the products with W and L
    const float *first_hidden;   // (B, H)
    const float *first_memory;   // (B, H)
    const int64_t *lengths;      // (B,)?: steps of each sequence; after them its state does not change and outputs are zero

    float *outputs;      // (B, T, H): h
    float *last_hidden;  // (B, H)
    float *last_memory;  // (B, H)
    float *memories;     // (B, T, H)?: m; this and the next three arrays are for the backward pass
    float *gates;        // (B, T, 3H)?: tanh(i), sigmoid(f + 1), sigmoid(o); with normalization the normalized i, f, o
    float *reduced;      // (B, T, R)?: z
    float *inverse;      // (B, T, 3)?: 1 / deviation of i, f, o

    const float *outputs_gradient;      // (B, T, H)?
    const float *last_hidden_gradient;  // (B, H)?
    const float *last_memory_gradient;  // (B, H)?
    void *input_gates_gradient;         // (B, T, 3H); bfloat16 if `half`
    float *bias_gradient;               // (B, 3H)
    float *reduced_gradient;            // (B, T, R)?: the gradient of z
    float *first_hidden_gradient;       // (B, H)
    float *first_memory_gradient;       // (B, H)
    float *norm_gradient;               // (B, 8, H)?
};

// Forward: the logarithm of the sum of exp(x . e_v + b_v) over all tokens v of a vocabulary. Backward: the gradients of
// this logarithm minus x . e_t + b_t, where t is the target.
// Shapes: N rows, V vocabulary, D width, C texts with N / C consecutive rows each.
struct Softmax {
    int64_t rows, size, width, texts;
    int64_t parts;  // number of parts of the vocabulary; each part is a job of the backward pass
    int64_t threads;
    int64_t half;
    int64_t next;
    const float *values;  // (N, D): x
    const float *table;   // (V, D): e
    const float *bias;    // (C, V): may be -inf
    float *packed;        // working memory: `factorcell_packed_table` floats; backward: `factorcell_softmax_room` floats
    float *result;        // (N,): the logarithms; an input of the backward pass
    float *logits;        // (N, V)?: stored in the forward pass, so that the backward pass does not compute them again

    const int64_t *targets;  // (N,)?: t, or V for no target; this and the following arrays are for the backward pass
    const float *scale;      // (N,)?: the gradient of each row's loss
    float *values_gradient;  // (N, D)?
    float *table_gradient;   // (V, D)?
    float *bias_gradient;    // (C, V)?: zero at first
};

// Next tokens of texts, where token v has the probability softmax(x . e_v + b_v). With `places`, the tokens at these
// places of the cumulative sum of the allowed tokens' weights; without `places`, the most probable allowed tokens. The log
// probabilities are those of the softmax over all tokens, allowed or not.
// Shapes: N texts, V vocabulary, D width, C contexts, S tokens for each text, A tokens that are forbidden everywhere, M
// that are forbidden in one text.
struct Drawing {
    double temperature;        // the weight of a token is its probability to the power of 1 / temperature
    double top_p;              // only the fewest tokens that have this share of the sum of all weights can be drawn
    int64_t texts, size, width, contexts;
    int64_t count, banned_count, forbidden_count;
    int64_t top_k;             // only this many of the most probable tokens can be drawn; 0: all
    int64_t end;               // the next token if no token is allowed
    int64_t threads;
    int64_t half;
    int64_t next;
    const float *values;       // (N, D): x
    float *packed;             // e, as `factorcell_softmax_pack` packs it
    const float *bias;         // (C, V): may be -inf
    const int64_t *context;    // (N,): the bias of each text
    const int64_t *banned;     // (A,)
    const int64_t *ends;       // (N,): where in `forbidden` the tokens of each text end
    const int64_t *forbidden;  // (M,)
    const double *places;      // (N, S)?: in [0, 1)
    int64_t *tokens;           // out (N, S)
    float *log_probs;          // out (N, S)
};

// Steps of Adam on rows of a table and its moments, in place; training/adam.py has the equations.
// Shapes: U rows, V size, D width.
struct Rows {
    int64_t rows, size, width;
    int64_t threads;
    int64_t next;
    const int64_t *index;    // (U,): distinct rows
    float *table;            // (V, D)
    float *first;            // (V, D): m
    float *second;           // (V, D): v
    const float *columns;    // (U, 5)?: the factors of `row_catch_up`, if rows catch up on missed steps
    const float *gradient;   // (U, D)?: the gradient of the rows, for a step
    const float *constants;  // (6,)?: the constants of `row_step`, for a step
};

// Completions of typed texts by the adapted coupled-gate LSTM of `Recurrence`, without `keep`, `scale` and `feed`:
//
//   log p(v | x, h) = log softmax(E P h + a)        [i, f, o] = b + [x, h] W + ([x, h] L) R
//
// Matrices are packed in panels of 3 vectors of columns, [panel][word of rows][column], padded with zeros; the columns of
// gates are in the order [panel of hidden units][gate][unit]. The words of short matrices are two bfloat16 numbers. The
// state after a token is one row: h, m and the log probabilities of the next token.
// Shapes: V vocabulary, E embedding, H hidden, R rank, k completions.
struct Request {
    double seconds;       // time limit, may be infinite, and may be lowered while the search runs; out: remaining seconds
    double lost_score;    // out: the best score of the hypotheses dropped for lack of time or memory; -infinity if none were;
                          // infinity if short products had larger errors than `margin`
    int64_t k;            // largest number of completions
    int64_t max_tokens;   // largest number of tokens of a completion, or the number of `input_tokens`
    int64_t allow_empty;  // whether the typed text counts as a completion of itself
    int64_t max_rows;     // largest number of expanded hypotheses
    int64_t max_waiting;  // largest number of waiting hypotheses
    int64_t count;        // out: completions found
    int64_t expanded;     // out: hypotheses expanded

    const float *gate_bias;       // b, in the order of gates
    const float *left_inputs;     // (E, R)?: L of x
    const float *left;            // (H, R)?: L of h
    const float *right;           // (R, 3H)?
    const float *short_left;      // L of h; required if products are short
    const float *short_right;     // words of two bfloat16
    const float *bias;            // a (V,), padded with -inf to a whole panel
    const float *start;           // (2H + V,): the state after the typed text
    double *scores;               // out (k,): log probabilities, unsorted
    int32_t *lengths;             // out (k,)
    int32_t *tokens;              // out (k, max_tokens)
    const int64_t *input_tokens;  // (max_tokens,)?: tokens to read
    float *states;                // out (max_tokens, 2H + V)?: the state after each of these tokens
};

struct Search {
    double margin;  // largest expected error of short products in nats; hypotheses less than this below the k-th best
                    // completion are still expanded
    int64_t requests, size, width, hidden, rank;
    int64_t end;  // the token that ends a text; tokens with smaller ids are never proposed
    int64_t threads;
    int64_t batch;   // hypotheses that are expanded at once at the start of the search
    int64_t growth;  // after each `growth` expanded hypotheses, a batch has one hypothesis more
    int64_t products;  // number type of the products that find hypotheses: 0 floats, 1 bfloat16
    int64_t next;
    Request *request;          // (requests,)
    const float *embedding;    // (V, E), dense
    const float *inputs;       // (E, 3H): W of x
    const float *weight;       // (H, 3H): W of h
    const float *short_weight;  // W of h; required if products are short
    const float *norm;         // (8, H)?, dense
    const float *projection;   // (H, E): P
    const float *table;        // (E, V): E transposed
};

// Online learning: the nats of texts and their gradients in the vectors u of their users. The recurrence and the softmax are
// those above, without `keep`, `scale` and `feed`, and the context vector c determines their changes:
//
//   c = activation(u M + m)    b = b0 + c B    L = sum_k c_k L_k    R = sum_k c_k R_k    a = a0 + c Q + u U
//
// m and a0 belong to the other variables of the context of a text. The first tokens of a text may be a prompt, which the
// model reads and does not predict.
// Shapes: N texts, M tokens of all texts, V vocabulary, E embedding, D = E + H, H hidden, R rank, K context, U user.
struct Learning {
    int64_t texts, count, size, width, inputs_and_hidden, hidden, rank, context, user;
    int64_t activation;  // 0: c = u, 1: none, 2: tanh, 3: ReLU
    int64_t threads;
    int64_t next;
    float *packed_forward;      // W of h, as `factorcell_recurrence_pack` packs it for each direction
    float *packed_backward;
    float *packed_table;        // the embedding, as `factorcell_softmax_pack` packs it
    const float *embedding;     // (V, E)
    const float *weight;        // (D, 3H): W of x, then W of h
    const float *bias;          // (3H,): b0
    const float *norm;          // (8, H)?
    const float *projection;    // (H, E): P
    const float *joint;         // (U, K)?: M; absent if c = u
    const float *concat;        // (K, 3H)?: B
    const float *left;          // (K, D, R)?: L_k
    const float *right;         // (K, R, 3H)?: R_k
    const float *context_bias;  // (K, V)?: Q
    const float *user_bias;     // (U, V)?: U

    const int64_t *tokens;     // (M,): of each text from its start token on
    const int64_t *ends;       // (N,): where in `tokens` the tokens of each text end
    const int64_t *prompts;    // (N,): the number of tokens of the prompt of each text
    const float *vectors;      // (N, U): u
    const float *joint_bias;   // (N, K)?: m
    const float *output_bias;  // (N, V): a0; may be -inf
    double *nats;              // (N,)
    float *gradients;          // (N, U)
};

// One step of online learning. `state` has one row for Adagrad, two for Adadelta and none for SGD; completion/online.py has
// the equations. Shapes: U user, S rows of state.
struct Update {
    double rate;
    double max_norm;  // largest norm of the vector; may be infinite
    int64_t size, rows;
    const float *gradient;  // (U,)
    float *vector;          // (U,): changed in place
    float *state;           // (S, U): changed in place
};

// The candidates of a blend for a typed text; completion/blend.py has the equations. All texts are numbered, and "none of
// them" is the last alternative.
// Shapes: N texts, A = N + 1 alternatives, F features.
struct Blend {
    double threshold;
    int64_t texts, alternatives, feature_count, typed;  // `typed` is the number of typed characters
    int64_t count;                       // the largest number of suggested texts; out: their number
    const double *log_probs;  // (N,)?: of the model, NaN for a text that it does not propose; for `factorcell_features`
    const int64_t *counts;    // (N,)?: how often the text occurs; 0 if it is not popular
    const double *shares;     // (N,)?: in the history of the user; 0 if it is not there
    const int64_t *ages;      // (N,)?: number of texts that the user entered after it
    double *features;         // (A, F): out of `factorcell_features`, in of `factorcell_blend`
    const int64_t *typos;      // (N,)?: for `factorcell_blend`, as all that follows
    const int64_t *places;     // (N,)?: the place of each text in alphabetical order
    const double *weights;     // (F,)?
    double *log_probabilities;  // (A,)?: out
    int64_t *order;             // (N,)?: out, the texts in the order of their probabilities
    double *evidence;           // (N,)?: out, the evidence for each of them; infinite for known texts
    int64_t *suggestions;       // (N,)?: out, the texts that are suggested, the best first
};
