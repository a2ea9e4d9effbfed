// Online learning and the blend of candidates, on any processor: the update of a user, and the ranking of candidates.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

const float DECAY = 0.95f, EPSILON = 1e-6f;  // of Adadelta; the number that prevents divisions by zero
const double TYPO_COST = 9;                  // nats per typo, as in completion/typos.py
const double LATER_SHARE = 0.1;              // an invented text after another text needs this share of the threshold
const double INFINITE = std::numeric_limits<double>::infinity();

// The features of an alternative, in the order of `SOURCES` in completion/blend.py.
enum Feature {
    MODEL, MODEL_LOG_P, MODEL_REST, POPULAR, POPULAR_LOG_SHARE, POPULAR_LOG_COUNT, OWN, OWN_LOG_SHARE, OWN_LAST,
    OWN_TYPED, NONE, NONE_REST, NONE_TYPED
};

// log(sum of exp(x)) for numbers that are not all -infinity.
double log_sum(const double *x, int64_t count) {
    const double largest = *std::max_element(x, x + count);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += std::exp(x[i] - largest);
    return largest + std::log(sum);
}

bool is_invented(const double *features) { return features[POPULAR] == 0 && features[OWN] == 0; }

// Write the places of the texts that are suggested, in this order, and return their number. An invented text that does not
// reach the threshold waits for another text, which it may then follow.
int64_t show(const double *evidence, int64_t count, double threshold, int64_t *places) {
    std::vector<int64_t> waiting;
    int64_t shown = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool may_follow = evidence[i] >= LATER_SHARE * threshold;
        if (evidence[i] >= threshold || (shown && may_follow)) {
            places[shown++] = i;
            for (const int64_t place : waiting) places[shown++] = place;
            waiting.clear();
        } else if (may_follow) {
            waiting.push_back(i);
        }
    }
    return shown;
}

// Compute log probabilities of all alternatives, and rank the texts.
void rank(Blend &a) {
    for (int64_t i = 0; i < a.alternatives; i++) {
        double score = 0;
        for (int64_t f = 0; f < a.feature_count; f++) score += a.features[i * a.feature_count + f] * a.weights[f];
        // The log probability of a text that the model proposes already has this cost.
        const bool is_proposed = a.features[i * a.feature_count + MODEL] != 0;
        if (i < a.texts && !is_proposed) score -= TYPO_COST * static_cast<double>(a.typos[i]);
        a.log_probabilities[i] = score;
    }
    const double total = log_sum(a.log_probabilities, a.alternatives);
    for (int64_t i = 0; i < a.alternatives; i++) a.log_probabilities[i] -= total;
    for (int64_t i = 0; i < a.texts; i++) a.order[i] = i;
    std::sort(a.order, a.order + a.texts, [&](int64_t i, int64_t j) {
        const double first = a.log_probabilities[i], second = a.log_probabilities[j];
        return first != second ? first > second : a.places[i] < a.places[j];
    });
    for (int64_t i = 0; i < a.texts; i++) {
        const int64_t text = a.order[i];
        a.evidence[i] = is_invented(a.features + text * a.feature_count) ? std::exp(a.log_probabilities[text]) : INFINITE;
    }
}

// The group of each text: 0 for those that come first, 1 for texts with typos, and 2 for invented texts that are less
// probable than a correction.
std::vector<int> find_groups(const Blend &a) {
    double best_correction = -INFINITE;
    for (int64_t i = 0; i < a.texts; i++) {
        const double *const x = a.features + i * a.feature_count;
        const bool is_correction = x[MODEL] != 0 && !is_invented(x) && a.typos[i] > 0;
        if (is_correction) best_correction = std::max(best_correction, x[MODEL_LOG_P]);
    }
    std::vector<int> groups;
    for (int64_t i = 0; i < a.texts; i++) {
        const double *const x = a.features + i * a.feature_count;
        groups.push_back(a.typos[i] > 0 ? 1 : is_invented(x) && x[MODEL_LOG_P] < best_correction ? 2 : 0);
    }
    return groups;
}

}  // namespace

extern "C" {

// Change the vector and the state of a user by the gradient of a text.
void factorcell_update(Update *a) {
    const float rate = static_cast<float>(a->rate);
    double square = 0;
    for (int64_t i = 0; i < a->size; i++) {
        const float g = a->gradient[i];
        float change = -g, *const first = a->state + i, *const second = a->state + a->size + i;
        if (a->rows == 1) {
            *first += g * g;
            change /= std::sqrt(*first) + EPSILON;
        } else if (a->rows == 2) {
            *first = DECAY * *first + (1 - DECAY) * g * g;
            change *= std::sqrt((*second + EPSILON) / (*first + EPSILON));
            *second = DECAY * *second + (1 - DECAY) * change * change;
        }
        a->vector[i] += rate * change;
        square += static_cast<double>(a->vector[i]) * a->vector[i];
    }
    const double norm = std::sqrt(square);
    if (!(norm > a->max_norm)) return;
    for (int64_t i = 0; i < a->size; i++) a->vector[i] *= static_cast<float>(a->max_norm / norm);
}

// Compute the features of all alternatives.
void factorcell_features(Blend *a) {
    double min_log_prob = 0, proposed = 0, total = 0;
    bool has_proposals = false;
    for (int64_t i = 0; i < a->texts; i++) {
        total += static_cast<double>(a->counts[i]);
        if (std::isnan(a->log_probs[i])) continue;
        min_log_prob = has_proposals ? std::min(min_log_prob, a->log_probs[i]) : a->log_probs[i];
        has_proposals = true;
        proposed += std::exp(a->log_probs[i]);
    }
    const double log_total = std::log(std::max(1.0, total)), log_rest = std::log1p(-std::min(1 - 1e-6, proposed));
    const double log_typed = std::log1p(static_cast<double>(a->typed));
    std::fill(a->features, a->features + a->alternatives * a->feature_count, 0.0);
    for (int64_t i = 0; i < a->texts; i++) {
        double *const x = a->features + i * a->feature_count;
        const bool is_proposed = !std::isnan(a->log_probs[i]);
        x[MODEL] = is_proposed;
        x[MODEL_LOG_P] = is_proposed ? a->log_probs[i] : min_log_prob;
        x[MODEL_REST] = is_proposed ? 0 : log_rest;
        if (a->counts[i]) {
            x[POPULAR] = 1, x[POPULAR_LOG_COUNT] = log_total;
            x[POPULAR_LOG_SHARE] = std::log(static_cast<double>(a->counts[i])) - log_total;
        }
        if (a->shares[i] == 0) continue;
        x[OWN] = 1, x[OWN_LOG_SHARE] = std::log(a->shares[i]);
        x[OWN_LAST] = std::log1p(static_cast<double>(a->ages[i])), x[OWN_TYPED] = log_typed;
    }
    double *const none = a->features + a->texts * a->feature_count;
    none[NONE] = 1, none[NONE_REST] = log_rest, none[NONE_TYPED] = log_typed;
}

// Rank the candidates, and choose at most `count` suggestions: texts without typos first, but for invented texts that are
// less probable than corrections of the prefix. No text with typos replaces a known text without.
void factorcell_blend(Blend *a) {
    rank(*a);
    std::vector<int64_t> places(a->texts), best;
    places.resize(show(a->evidence, a->texts, a->threshold, places.data()));
    for (int64_t i = 0; i < static_cast<int64_t>(places.size()); i++) {
        const int64_t text = a->order[places[i]];
        const bool is_certain = a->typos[text] == 0 && !is_invented(a->features + text * a->feature_count);
        if (i < a->count || is_certain) best.push_back(text);
    }
    const std::vector<int> groups = find_groups(*a);
    std::stable_sort(best.begin(), best.end(), [&](int64_t i, int64_t j) { return groups[i] < groups[j]; });
    a->count = std::min(a->count, static_cast<int64_t>(best.size()));
    std::copy(best.begin(), best.begin() + a->count, a->suggestions);
}

// Write the places of the ranked texts that are suggested with `threshold` (N,), and return their number.
int64_t factorcell_shown(const double *evidence, int64_t count, double threshold, int64_t *places) {
    return show(evidence, count, threshold, places);
}
}
