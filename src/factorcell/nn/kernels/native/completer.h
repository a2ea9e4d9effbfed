// A model with one user, who types texts and learns them: the run time of exported runs on a device.
#pragma once

#include "sets.h"

#include <string>
#include <vector>

// Reads a text and writes another one to `result`, which has `room` bytes. Returns its bytes, or -1 if it is the same text.
typedef int32_t (*TextFunction)(const char *text, int32_t bytes, char *result, int32_t room);

// Texts with counts or other weights, in the order of their bytes. Texts with larger weights come first in completions.
class TextLookup {
  public:
    TextLookup() = default;
    // The texts have to be sorted and distinct; `lower_case` returns them in lower case.
    TextLookup(std::vector<std::string> texts, std::vector<double> weights, TextFunction lower_case);
    // The numbers of the best `k` texts that are longer than `prefix` and begin with it, or only in another case.
    std::vector<int64_t> complete(const std::string &prefix, int64_t k) const;
    std::vector<int64_t> complete_in_other_case(const std::string &prefix, int64_t k) const;
    // The number of a text, or -1.
    int64_t find(const std::string &text) const;

    std::vector<std::string> texts;
    std::vector<double> weights;

  private:
    std::vector<int64_t> best(std::vector<int64_t> numbers, int64_t k) const;

    std::vector<int64_t> ranks;  // 0 for the text with the largest weight; equal weights in the order of the texts
    std::vector<std::pair<std::string, int64_t>> forms;  // the texts in lower case, sorted, with their numbers
    TextFunction lower_case = nullptr;
};

// What a `Suggestion` has in Python. `sources` has a bit for each source: 1 model, 2 popularity, 4 history.
struct DeviceSuggestion {
    std::string text;
    double log_probability;
    int64_t sources;
};

class Completer {
  public:
    Completer(const Kernels &kernels, const Learning &sizes) : kernels(kernels), model(sizes) {}

    // The memory of an array of `Learning` by its number in `ARRAYS` (completer.cpp), which the caller fills.
    float *array(int64_t number, int64_t count);
    // Pack the arrays; call this once, after all arrays, the vocabulary and the rule are there.
    void pack();
    // Compute what the vector of the user determines; call this after every change of the vector.
    void begin();
    void set_history(const std::vector<std::string> &entered);
    // Suggest texts for a prefix: its tokens `ids` for the model, if `searches`, and its text for the other sources.
    void complete(const std::vector<int64_t> &ids, const std::string &prefix, bool searches, int64_t k, double seconds);
    // Learn the tokens of a text, from the start token on, and return its nats before learning.
    double learn(const std::vector<int64_t> &tokens);

    int64_t start, end, max_tokens, optimizer_rows;
    double rate, max_norm;
    std::vector<std::string> tokens;  // by id
    TextLookup popular;
    std::vector<double> blend_weights;
    double threshold = 0;
    std::vector<float> vector, state;
    std::vector<DeviceSuggestion> suggestions;
    TextFunction filter = nullptr;  // writes the text to suggest for a completion of the model; empty if there is none
    TextFunction lower_case = nullptr;

  private:
    void read(const std::vector<int64_t> &ids);
    void follow(const float *from, const std::vector<int64_t> &ids);
    Request request() const;
    Search search() const;
    std::vector<DeviceSuggestion> propose(const std::string &prefix, int64_t typed, int64_t k, double seconds);
    double blend(const std::string &prefix, std::vector<std::string> texts, const std::vector<DeviceSuggestion> &proposed,
                 int64_t size, double log_share);

    const Kernels &kernels;
    Learning model;
    std::vector<std::vector<float>> arrays;
    std::vector<float> inputs, projection, packed_weight, packed_back, packed_table;
    std::vector<float> gate_bias, left_inputs, left, right, bias;
    std::vector<int64_t> typed_ids;           // the tokens after the start token that the model has read
    std::vector<std::vector<float>> states;  // after the start token, and after each of `typed_ids`
    TextLookup history;
    std::vector<int64_t> ages;  // of the texts of `history`
};
