// The completer of a device, and its flat C interface, which Python and WebAssembly call.
#include "completer.h"

#include <algorithm>
#include <cmath>
#include <limits>

extern "C" {
void factorcell_update(Update *);
void factorcell_features(Blend *);
void factorcell_blend(Blend *);
}

namespace {

const int64_t MIN_PROPOSALS = 10, MAX_EXPANDED = 10000, MAX_WAITING = 10000;  // as in Python
const int64_t FIRST_BATCH = 16, GROWTH = 4, PANEL_VECTORS = 3;
const double HALF_LIFE = 20;  // number of newer texts after which a text of a history has half of its first weight

// The arrays of a model in the order of their numbers.
const float *Learning::*const ARRAYS[] = {
    &Learning::embedding, &Learning::weight,       &Learning::bias,      &Learning::norm,       &Learning::projection,
    &Learning::joint,     &Learning::concat,       &Learning::left,      &Learning::right,      &Learning::context_bias,
    &Learning::user_bias, &Learning::joint_bias,   &Learning::output_bias,
};

int64_t round_up(int64_t count, int64_t whole) { return (count + whole - 1) / whole * whole; }

std::string transform_text(TextFunction function, const std::string &text) {
    std::vector<char> room(4 * text.size() + 4);
    const int32_t size = static_cast<int32_t>(text.size());
    const int32_t bytes = function(text.data(), size, room.data(), static_cast<int32_t>(room.size()));
    return bytes < 0 ? text : std::string(room.data(), bytes);
}

int64_t count_characters(const std::string &text) {
    return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

}  // namespace

TextLookup::TextLookup(std::vector<std::string> texts_, std::vector<double> weights_, TextFunction lower_case_)
    : texts(std::move(texts_)), weights(std::move(weights_)), ranks(texts.size()), lower_case(lower_case_) {
    std::vector<int64_t> order(texts.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int64_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return weights[i] > weights[j]; });
    for (size_t rank = 0; rank < order.size(); rank++) ranks[order[rank]] = static_cast<int64_t>(rank);
    for (size_t i = 0; i < texts.size(); i++) forms.emplace_back(transform_text(lower_case, texts[i]), static_cast<int64_t>(i));
    std::sort(forms.begin(), forms.end());
}

std::vector<int64_t> TextLookup::complete(const std::string &prefix, int64_t k) const {
    const auto compare = [&](const std::string &text) { return text.compare(0, prefix.size(), prefix); };
    const auto is_before = [&](const std::string &text, const std::string &) { return compare(text) < 0; };
    const auto is_after = [&](const std::string &, const std::string &text) { return compare(text) > 0; };
    const auto first = std::lower_bound(texts.begin(), texts.end(), prefix, is_before);
    const auto last = std::upper_bound(first, texts.end(), prefix, is_after);
    std::vector<int64_t> found;
    for (auto text = first; text != last; ++text)
        if (text->size() > prefix.size()) found.push_back(text - texts.begin());
    return best(std::move(found), k);
}

std::vector<int64_t> TextLookup::complete_in_other_case(const std::string &prefix, int64_t k) const {
    std::vector<int64_t> found;
    if (texts.empty()) return found;
    const std::string form = transform_text(lower_case, prefix);
    auto place = std::lower_bound(forms.begin(), forms.end(), std::make_pair(form, int64_t{0}));
    for (; place != forms.end() && place->first.compare(0, form.size(), form) == 0; ++place) {
        const bool has_case_of_prefix = texts[place->second].compare(0, prefix.size(), prefix) == 0;
        if (place->first.size() > form.size() && !has_case_of_prefix) found.push_back(place->second);
    }
    return best(std::move(found), k);
}

// Return the `k` texts of `numbers` with the largest weights, in this order.
std::vector<int64_t> TextLookup::best(std::vector<int64_t> numbers, int64_t k) const {
    const auto middle = numbers.begin() + std::min<int64_t>(k, static_cast<int64_t>(numbers.size()));
    std::partial_sort(numbers.begin(), middle, numbers.end(), [&](int64_t i, int64_t j) { return ranks[i] < ranks[j]; });
    numbers.erase(middle, numbers.end());
    return numbers;
}

int64_t TextLookup::find(const std::string &text) const {
    const auto place = std::lower_bound(texts.begin(), texts.end(), text);
    return place != texts.end() && *place == text ? place - texts.begin() : -1;
}

float *Completer::array(int64_t number, int64_t count) {
    arrays.emplace_back(count);
    model.*ARRAYS[number] = arrays.back().data();
    return arrays.back().data();
}

void Completer::pack() {
    const int64_t V = model.size, E = model.width, H = model.hidden, R = model.left ? model.rank : 0;
    const int64_t panel = PANEL_VECTORS * kernels.lanes, gates = 3 * round_up(H, kernels.lanes);
    Recurrence recurrence{};
    recurrence.sequences = recurrence.steps = recurrence.threads = 1, recurrence.hidden = H;
    recurrence.weight = model.weight + E * 3 * H;
    for (const bool back : {false, true}) {
        auto &packed = back ? packed_back : packed_weight;
        packed.resize(kernels.packed_weight(recurrence, back));
        recurrence.packed = packed.data();
        kernels.recurrence_pack(recurrence, back);
    }
    Softmax softmax{};
    softmax.size = V, softmax.width = E, softmax.table = model.embedding;
    softmax.texts = softmax.parts = softmax.threads = 1;
    packed_table.resize(kernels.packed_table(softmax));
    softmax.packed = packed_table.data();
    kernels.softmax(softmax, true);
    inputs.resize(E * gates), projection.resize(H * round_up(E, panel));
    kernels.pack_gate_matrix(H, E, model.weight, inputs.data());
    kernels.pack_matrix(H, E, model.projection, projection.data());
    gate_bias.resize(gates), bias.resize(round_up(V, panel));
    left_inputs.resize(E * round_up(R, panel)), left.resize(H * round_up(R, panel)), right.resize(R * gates);
    model.packed_forward = packed_weight.data(), model.packed_backward = packed_back.data();
    model.packed_table = packed_table.data();
    vector.resize(model.user), state.resize(optimizer_rows * model.user);
}

void Completer::begin() {
    Learning learning = model;
    learning.texts = learning.threads = 1, learning.vectors = vector.data();
    kernels.pack_user(learning, {gate_bias.data(), left_inputs.data(), left.data(), right.data(), bias.data()});
    typed_ids.clear();
    states.clear();
    const std::vector<float> zeros(2 * model.hidden + model.size);
    follow(zeros.data(), {start});
}

void Completer::set_history(const std::vector<std::string> &entered) {
    std::vector<std::string> distinct(entered);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<double> weights(distinct.size());
    ages.assign(distinct.size(), 0);
    double total = 0;
    for (size_t i = 0; i < entered.size(); i++) {  // the newest text is the last, so that the ages of newer texts remain
        const auto place = std::lower_bound(distinct.begin(), distinct.end(), entered[i]) - distinct.begin();
        const double age = static_cast<double>(entered.size() - 1 - i), weight = std::pow(0.5, age / HALF_LIFE);
        weights[place] += weight, total += weight, ages[place] = static_cast<int64_t>(age);
    }
    for (double &weight : weights) weight /= total;
    history = TextLookup(std::move(distinct), std::move(weights), lower_case);
}

Request Completer::request() const {
    Request q{};
    q.gate_bias = gate_bias.data(), q.left_inputs = left_inputs.data(), q.left = left.data(), q.right = right.data();
    q.bias = bias.data();
    return q;
}

Search Completer::search() const {
    Search a{};
    a.requests = a.threads = 1, a.size = model.size, a.width = model.width, a.hidden = model.hidden;
    a.rank = model.left ? model.rank : 0, a.end = end, a.batch = FIRST_BATCH, a.growth = GROWTH;
    a.embedding = model.embedding, a.inputs = inputs.data(), a.weight = packed_weight.data(), a.norm = model.norm;
    a.projection = projection.data(), a.table = packed_table.data();
    return a;
}

// Append the states after each of `ids` to `states`, from the state `from`.
void Completer::follow(const float *from, const std::vector<int64_t> &ids) {
    if (ids.empty()) return;
    const int64_t row = 2 * model.hidden + model.size;
    std::vector<float> rows(ids.size() * row);
    Request q = request();
    q.k = 1, q.max_tokens = static_cast<int64_t>(ids.size()), q.input_tokens = ids.data();
    q.start = from, q.states = rows.data();
    Search a = search();
    a.request = &q;
    kernels.search(a, true);
    for (size_t i = 0; i < ids.size(); i++) states.emplace_back(rows.begin() + i * row, rows.begin() + (i + 1) * row);
}

// Read the tokens of a prefix; the states of those that are shared with the last prefix are not computed again.
void Completer::read(const std::vector<int64_t> &ids) {
    size_t common = 0;
    while (common < ids.size() && common < typed_ids.size() && ids[common] == typed_ids[common]) common++;
    states.resize(common + 1);
    const std::vector<float> last = states.back();
    follow(last.data(), {ids.begin() + common, ids.end()});
    typed_ids = ids;
}

// Search the `k` most probable texts that the filter accepts. If it rejects so many that fewer remain, the search runs again
// for twice as many.
std::vector<DeviceSuggestion> Completer::propose(const std::string &prefix, int64_t typed, int64_t k, double seconds) {
    const double over = now() + seconds;
    std::vector<DeviceSuggestion> best;
    std::vector<char> room(1 << 17);
    for (int64_t sought = k;; sought *= 2) {
        Request q = request();
        q.seconds = over - now();
        q.k = std::min(sought, MAX_EXPANDED + 1), q.max_tokens = std::max<int64_t>(0, max_tokens - typed);
        q.max_rows = MAX_EXPANDED, q.max_waiting = MAX_WAITING, q.start = states.back().data();
        std::vector<double> scores(q.k);
        std::vector<int32_t> lengths(q.k), found_tokens(q.k * q.max_tokens);
        q.scores = scores.data(), q.lengths = lengths.data(), q.tokens = found_tokens.data();
        Search a = search();
        a.request = &q;
        kernels.search(a, false);
        std::vector<int64_t> order(q.count);
        for (int64_t i = 0; i < q.count; i++) order[i] = i;
        std::sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
            if (scores[i] != scores[j]) return scores[i] > scores[j];
            const int32_t *const x = found_tokens.data() + i * q.max_tokens;
            const int32_t *const y = found_tokens.data() + j * q.max_tokens;
            return std::lexicographical_compare(x, x + lengths[i], y, y + lengths[j]);
        });
        for (const int64_t i : order) {
            std::string text = prefix;
            for (int32_t t = 0; t < lengths[i]; t++) text += tokens[found_tokens[i * q.max_tokens + t]];
            const int32_t bytes =
                filter(text.data(), static_cast<int32_t>(text.size()), room.data(), static_cast<int32_t>(room.size()));
            if (bytes == 0) continue;
            if (bytes > 0) text.assign(room.data(), bytes);
            const auto is_same = [&](const DeviceSuggestion &suggestion) { return suggestion.text == text; };
            const auto known = std::find_if(best.begin(), best.end(), is_same);
            if (known == best.end()) best.push_back({text, scores[i], 1});
            else known->log_probability = std::max(known->log_probability, scores[i]);
        }
        const auto is_better = [](const auto &x, const auto &y) { return x.log_probability > y.log_probability; };
        std::stable_sort(best.begin(), best.end(), is_better);
        if (static_cast<int64_t>(best.size()) > k) best.resize(k);
        if (static_cast<int64_t>(best.size()) == k || q.count < sought || q.seconds <= 0) return best;
    }
}

void Completer::complete(const std::vector<int64_t> &ids, const std::string &prefix, bool searches, int64_t k,
                         double seconds) {
    const int64_t size = std::max(k, MIN_PROPOSALS);
    std::vector<DeviceSuggestion> proposed;
    if (searches) {
        read(ids);
        proposed = propose(prefix, static_cast<int64_t>(ids.size()), size, seconds);
    }
    std::vector<std::string> texts, others;
    for (const auto &suggestion : proposed) texts.push_back(suggestion.text);
    for (const TextLookup *known : {&popular, &history})
        for (const int64_t i : known->complete(prefix, size)) texts.push_back(known->texts[i]);
    suggestions.clear();
    const double log_none = blend(prefix, texts, proposed, size, 0);
    if (const int64_t missing = size - static_cast<int64_t>(suggestions.size())) {
        for (const TextLookup *known : {&popular, &history})
            for (const int64_t i : known->complete_in_other_case(prefix, MIN_PROPOSALS)) {
                const std::string &text = known->texts[i];
                if (std::find(texts.begin(), texts.end(), text) == texts.end()) others.push_back(text);
            }
        blend(prefix, others, {}, missing, log_none);
    }
    if (static_cast<int64_t>(suggestions.size()) > k) suggestions.resize(k);
}

// Append the best `size` of `texts` to the suggestions; `log_share` is the log probability that one of all is right. Return
// the log probability that none is.
double Completer::blend(const std::string &prefix, std::vector<std::string> texts,
                        const std::vector<DeviceSuggestion> &proposed, int64_t size, double log_share) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    const int64_t count = static_cast<int64_t>(texts.size()), feature_count = static_cast<int64_t>(blend_weights.size());
    std::vector<double> logs(count, std::numeric_limits<double>::quiet_NaN()), shares(count), evidence(count);
    std::vector<int64_t> counts(count), text_ages(count), typos(count), places(count), order(count), listed(count);
    for (const auto &suggestion : proposed)
        logs[std::lower_bound(texts.begin(), texts.end(), suggestion.text) - texts.begin()] = suggestion.log_probability;
    for (int64_t i = 0; i < count; i++) {
        places[i] = i;
        const int64_t known = popular.find(texts[i]), own = history.find(texts[i]);
        if (known >= 0) counts[i] = static_cast<int64_t>(popular.weights[known]);
        if (own >= 0) shares[i] = history.weights[own], text_ages[i] = ages[own];
    }
    std::vector<double> features((count + 1) * feature_count), log_probabilities(count + 1);
    Blend a{};
    a.threshold = threshold, a.texts = count, a.alternatives = count + 1, a.count = size;
    a.typed = count_characters(prefix), a.feature_count = feature_count;
    a.log_probs = logs.data(), a.counts = counts.data(), a.shares = shares.data(), a.ages = text_ages.data();
    a.features = features.data(), a.typos = typos.data(), a.places = places.data(), a.weights = blend_weights.data();
    a.log_probabilities = log_probabilities.data(), a.order = order.data(), a.evidence = evidence.data();
    a.suggestions = listed.data();
    factorcell_features(&a);
    factorcell_blend(&a);
    for (int64_t i = 0; i < a.count; i++) {
        const int64_t text = listed[i];
        const int64_t sources = !std::isnan(logs[text]) + 2 * (counts[text] != 0) + 4 * (shares[text] != 0);
        suggestions.push_back({texts[text], log_share + log_probabilities[text], sources});
    }
    return log_share + log_probabilities[count];
}

double Completer::learn(const std::vector<int64_t> &ids) {
    const int64_t ends = static_cast<int64_t>(ids.size()), prompt = 0;
    double nats = 0;
    std::vector<float> gradient(model.user);
    Learning learning = model;
    learning.texts = learning.threads = 1, learning.count = ends;
    learning.tokens = ids.data(), learning.ends = &ends, learning.prompts = &prompt;
    learning.vectors = vector.data(), learning.nats = &nats, learning.gradients = gradient.data();
    kernels.learning(learning, false);
    const auto is_finite = [](float value) { return std::isfinite(value); };
    if (!std::all_of(gradient.begin(), gradient.end(), is_finite)) return nats;  // the nats overflow
    std::vector<float> vector_after = vector, state_after = state;
    Update update{rate, max_norm, model.user, optimizer_rows, gradient.data(), vector_after.data(), state_after.data()};
    factorcell_update(&update);
    if (std::all_of(vector_after.begin(), vector_after.end(), is_finite)) vector = vector_after, state = state_after;
    return nats;
}

#if defined(__wasm__)
#define EXPORTED __attribute__((used, visibility("default")))
// Functions of the program that imports the module
#define IMPORTED(name) extern "C" __attribute__((import_module("env"), import_name(#name))) int32_t \
    name(const char *text, int32_t bytes, char *result, int32_t room);
IMPORTED(factorcell_filter)
IMPORTED(factorcell_lower_case)
#else
#define EXPORTED
#endif

namespace {

// Split `bytes` joined texts of the given lengths.
std::vector<std::string> split_texts(const char *bytes, const int32_t *lengths, int32_t count) {
    std::vector<std::string> texts;
    for (int32_t i = 0; i < count; bytes += lengths[i++]) texts.emplace_back(bytes, lengths[i]);
    return texts;
}

}  // namespace

// Numbers are doubles or 32 bits wide, so that JavaScript can pass them.
extern "C" {

// A completer of a model with these sizes: V, E, H, R, K, U, the activation, the ids of the start and the end token, the
// largest number of tokens of a suggested text, and the rows of the state of the optimizer.
EXPORTED Completer *completer_new(const int32_t *sizes, double rate, double max_norm, double threshold, int32_t variant) {
    Learning model{};
    model.size = sizes[0], model.width = sizes[1], model.hidden = sizes[2], model.rank = sizes[3], model.context = sizes[4];
    model.user = sizes[5], model.activation = sizes[6], model.inputs_and_hidden = model.width + model.hidden;
    Completer *const c = new Completer(kernels_of(variant), model);
    c->start = sizes[7], c->end = sizes[8], c->max_tokens = sizes[9], c->optimizer_rows = sizes[10];
    c->rate = rate, c->max_norm = max_norm, c->threshold = threshold;
#if defined(__wasm__)
    c->filter = factorcell_filter, c->lower_case = factorcell_lower_case;
#endif
    return c;
}

EXPORTED void completer_delete(Completer *c) { delete c; }

// Numbers of arrays are those of `ARRAYS`.
EXPORTED float *completer_array(Completer *c, int32_t number, int32_t count) { return c->array(number, count); }

EXPORTED void completer_tokens(Completer *c, const char *bytes, const int32_t *lengths, int32_t count) {
    c->tokens = split_texts(bytes, lengths, count);
}

// Texts in the order of their bytes, with their counts.
EXPORTED void completer_popular(Completer *c, const char *bytes, const int32_t *lengths, const double *counts,
                                int32_t count) {
    std::vector<double> weights(counts, counts + count);
    c->popular = TextLookup(split_texts(bytes, lengths, count), std::move(weights), c->lower_case);
}

EXPORTED void completer_blend(Completer *c, const double *weights, int32_t count) {
    c->blend_weights.assign(weights, weights + count);
}

EXPORTED void completer_pack(Completer *c) { c->pack(); }

// The vector and the state of the user, for the caller to read and to change.
EXPORTED float *completer_vector(Completer *c) { return c->vector.data(); }
EXPORTED float *completer_state(Completer *c) { return c->state.data(); }
EXPORTED void completer_begin(Completer *c) { c->begin(); }

EXPORTED void completer_history(Completer *c, const char *bytes, const int32_t *lengths, int32_t count) {
    c->set_history(split_texts(bytes, lengths, count));
}

EXPORTED void completer_functions(Completer *c, TextFunction filter, TextFunction lower_case) {
    c->filter = filter, c->lower_case = lower_case;
}

// Return the number of suggestions; the model proposes none without `searches`.
EXPORTED int32_t completer_complete(Completer *c, const int32_t *ids, int32_t count, const char *prefix, int32_t bytes,
                                    int32_t searches, int32_t k, double seconds) {
    c->complete(std::vector<int64_t>(ids, ids + count), std::string(prefix, bytes), searches, k, seconds);
    return static_cast<int32_t>(c->suggestions.size());
}

EXPORTED const char *completer_text(Completer *c, int32_t i) { return c->suggestions[i].text.data(); }
EXPORTED int32_t completer_text_bytes(Completer *c, int32_t i) {
    return static_cast<int32_t>(c->suggestions[i].text.size());
}
EXPORTED double completer_log_probability(Completer *c, int32_t i) { return c->suggestions[i].log_probability; }
EXPORTED int32_t completer_sources(Completer *c, int32_t i) { return static_cast<int32_t>(c->suggestions[i].sources); }

EXPORTED double completer_learn(Completer *c, const int32_t *ids, int32_t count) {
    return c->learn(std::vector<int64_t>(ids, ids + count));
}
}
