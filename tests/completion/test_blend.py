"""Compare the blend with its sources alone, and fitted weights with the weights that generated the choices."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factorcell.completion import blend as blend_module
from factorcell.completion.blend import (
    BOUNDS,
    DEFAULT_WEIGHTS,
    FEATURES,
    PENALTY,
    SOURCES,
    Blend,
    BlendWeights,
    Candidates,
    Example,
    compute_features,
    save_settings,
)
from factorcell.completion.completer import Completer
from factorcell.completion.online import LearningRule, User
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from tests.small_runs import make_letters

CITY = {"user": "city", "context": (), "min_user_count": 1}
POPULAR = Popularity.fit(["abc"] * 5 + ["abba"] * 3 + ["cab"] * 3)


def make_run() -> Run:
    return make_letters(data=CITY, spread=0.8)


def weights_of(source: str) -> BlendWeights:
    """Return weights that are zero for all features of other sources."""
    return BlendWeights({f: (1.0 if f in SOURCES[source] and f != "model rest" else 0.0) for f in FEATURES})


def candidates_of(*, none: Mapping[str, float], **features_of_texts: Mapping[str, float]) -> Candidates:
    """Return candidates with these features, which are 0 otherwise."""
    rows = [[features.get(name, 0.0) for name in FEATURES] for features in (*features_of_texts.values(), none)]
    return Candidates([*features_of_texts], np.array(rows), [0] * len(features_of_texts))


def probabilities(weights: BlendWeights, candidates: Candidates) -> list[float]:
    return [math.exp(log_prob) for log_prob in weights.rank(candidates, 0).log_probabilities]


def suggested(blend: Blend, prefix: str, user: User) -> list[str]:
    return [suggestion.text for suggestion in blend.complete(prefix, user)]


def test_candidates_have_the_features_of_their_sources() -> None:
    blend, history = Blend(make_run(), POPULAR), History(("abba", "b", "abba", "acc", "b"))
    model = [Suggestion("abc", math.log(0.5), "model"), Suggestion("acc", math.log(0.25), "model")]
    candidates = blend.candidates("a", model, history, 10)
    features = dict(zip([*candidates.texts, ""], candidates.features.tolist(), strict=True))
    shares = {"abc": math.log(5 / 8), "abba": math.log(3 / 8)}  # of the counts of all candidates
    total = math.log(8)
    history_logs = {candidate.text: candidate.log_probability for candidate in history.complete("a")}
    typed = math.log(2)
    assert list(features) == ["abc", "acc", "abba", ""]
    none = [0, 0, 0]
    assert features["abc"] == pytest.approx([1, math.log(0.5), 0, 1, shares["abc"], total, 0, 0, 0, 0, *none])
    history_features = [1, history_logs["acc"], math.log(2), typed]
    assert features["acc"] == pytest.approx([1, math.log(0.25), 0, 0, 0, 0, *history_features, *none])
    rest, history_features = math.log(1 - 0.75), [1, history_logs["abba"], math.log(3), typed]
    assert features["abba"] == pytest.approx(
        [0, math.log(0.25), rest, 1, shares["abba"], total, *history_features, *none]
    )
    assert features[""] == pytest.approx([*[0] * 10, 1, rest, typed])


def test_with_weights_of_one_source_the_blend_has_the_order_of_that_source() -> None:
    run = make_run()
    completer, user = Completer(run), User.new(run)
    user = replace(user, history=History(("abab", "acc", "abab")))
    typed_text = completer.type_text(completer.begin(user), "a")
    alone = {
        "model": completer.suggest(typed_text).suggestions,
        "popularity": POPULAR.complete("a"),
        "history": user.history.complete("a"),
    }
    for source, expected in alone.items():
        suggestions = Blend(run, POPULAR, weights_of(source)).suggest(typed_text, 10).suggestions
        assert [s.text for s in suggestions][: len(expected)] == [s.text for s in expected]


def test_more_counts_are_never_below_fewer() -> None:
    run = make_run()
    user, seconds = User.new(run), 0.0  # without the model
    counts = {"abb": 3, "abc": 8, "aba": 4, "ab": 6, "aca": 5}
    popularity = Popularity.fit([text for text, count in counts.items() for _ in range(count)])
    expected = sorted(counts, key=lambda text: -counts[text])
    assert suggested(Blend(run, popularity, seconds=seconds), "", user) == expected
    random = np.random.default_rng(0)
    blend = Blend(run, popularity)
    examples = []
    for _ in range(100):
        candidates = blend.candidates("a", [], History(("abb",)), 10)
        examples.append((candidates, str(random.choice(["abb", "aba", "", "ab"]))))  # rare texts are entered often
    for weights in (DEFAULT_WEIGHTS, BlendWeights.fit(examples)):
        weights = replace(weights, threshold=0.0)
        assert suggested(Blend(run, popularity, weights, seconds=seconds), "", user) == expected


def test_a_proposal_of_the_model_never_lowers_the_score() -> None:
    """Users who never enter what the model proposes still see popular texts in the order of their counts."""
    run = make_run()
    popularity = Popularity.fit(["abc"] * 5 + ["cab"] * 4 + ["bac"] * 3)
    blend = Blend(run, popularity)
    model = [Suggestion("abc", math.log(0.3), "model"), Suggestion("cc", math.log(0.1), "model")]
    candidates = blend.candidates("", model, History(), 10)
    weights = BlendWeights.fit([(candidates, "bac")] * 30 + [(candidates, "cab")] * 30 + [(candidates, "")] * 9)
    texts = [suggestion.text for suggestion in weights.merge(candidates, 10)]
    assert [text for text in texts if text != "cc"] == ["abc", "cab", "bac"]


def test_an_invented_text_needs_evidence() -> None:
    run = make_run()
    user = replace(User.new(run), history=History(("abab",)))
    for threshold in (0.0, 0.05, 2.0):
        blend = Blend(run, POPULAR, replace(DEFAULT_WEIGHTS, threshold=threshold))
        typed_text = blend.type_text(blend.begin(user), "a")
        for number, suggestion in enumerate(blend.suggest(typed_text).suggestions):
            is_known = suggestion.text in {"abc", "abba", "abab"}
            assert is_known or math.exp(suggestion.log_probability) >= (0.1 if number else 1.0) * threshold
        assert {"abc", "abba", "abab"} <= set(suggested(blend, "a", user))
    blend = Blend(run, POPULAR, replace(DEFAULT_WEIGHTS, threshold=11.0))
    assert len(suggested(blend, "a", user)) == 3


def test_ranks_without_a_blend() -> None:
    texts, counts = ["popular", "own", "both"], {"popular": 1000, "both": 10}
    history = History((*(f"other {number}" for number in range(10)), "both", "own"))
    candidates = Candidates(texts, compute_features(texts, {"popular": -0.1}, counts, history, 2), [0, 0, 0])
    for text, sources, rank in (
        ("own", ["history"], 1),
        ("popular", ["history"], None),
        ("popular", ["popularity"], 1),
        ("popular", ["history", "popularity"], 3),
        ("both", ["history", "popularity"], 2),
        ("both", ["model"], None),
    ):
        assert candidates.rank_alone(text, sources) == rank


def test_the_threshold_is_the_lowest_with_few_wrong_inventions() -> None:
    known, none = {"popular": 1.0, "popular log share": -1.0}, {"none": 1.0}

    def example(log_prob: float, text: str) -> Example:
        """Return an example with an invented text "new" of a probability and a popular text."""
        return candidates_of(new={"model": 1.0, "model log p": log_prob}, known=known, none=none), text

    weights = BlendWeights({**dict.fromkeys(FEATURES, 0.0), "model": 3.0, "model log p": 1.0})
    wrong, right = [example(-float(i) / 50, "known") for i in range(50)], [example(1.0, "new") for _ in range(50)]
    threshold = weights.fit_threshold([*wrong, *right])
    first = [probabilities(weights, candidates)[0] for candidates, _ in wrong]
    assert sum(probability >= threshold for probability in first) <= 0.005 * 100 < 1
    assert all(probabilities(weights, candidates)[0] >= threshold for candidates, _ in right)
    # A third of the inventions are right, but without them the blend still ranks better than each source alone.
    popular = [(candidates_of(known=known, none=none), "known")] * 30
    typed_before = [(candidates_of(typed={"own": 1.0}, none=none), "typed")] * 30
    costly = [example(-1.0, "other" if number % 3 else "new") for number in range(30)]
    probability = probabilities(weights, costly[0][0])[0]
    assert weights.fit_threshold([*popular, *typed_before, *costly]) > probability
    # If most lists begin with wrong inventions, but the right ones are no more probable, none are removed.
    mixed = [example(-1.0, "new" if number % 3 else "other") for number in range(60)]
    assert weights.fit_threshold(mixed) <= probabilities(weights, mixed[0][0])[0]


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [
        (0.0, [0, 1, 2, 3, 4]),
        (0.5, [0, 1, 2, 3]),  # 0.04 is less than a tenth
        (0.51, [1, 0, 2, 3]),  # the first one waits for a known text
        (2.5, [1, 0]),
        (5.1, [1]),
    ],
)
def test_inventions_need_evidence_to_be_first_and_a_tenth_of_it_to_follow(threshold: float, shown: list[int]) -> None:
    evidence = np.array([0.5, blend_module.KNOWN, 0.2, 0.06, 0.04])
    assert blend_module._shown(evidence, threshold) == shown
    assert blend_module._shown(np.array([0.3, 0.2]), 0.31) == []  # a short list is better than an invented one


def test_a_suggestion_names_the_sources_that_propose_it() -> None:
    run = make_run()
    completer, user = Completer(run), replace(User.new(run), history=History(("abab", "abba")))
    typed_text = completer.type_text(completer.begin(user), "a")
    proposed = {
        "model": completer.suggest(typed_text).suggestions,
        "popularity": POPULAR.complete("a"),
        "history": user.history.complete("a"),
    }
    suggestions = Blend(run, POPULAR).suggest(typed_text, 10).suggestions
    assert len({s.source for s in suggestions}) > 2
    for s in suggestions:
        names = [name for name, texts in proposed.items() if s.text in {other.text for other in texts}]
        assert s.source == "+".join(names)


def test_probabilities_sum_to_one_and_parts_sum_to_scores() -> None:
    run = make_run()
    random = np.random.default_rng(3)
    weights = BlendWeights(dict(zip(FEATURES, random.normal(size=len(FEATURES)).tolist(), strict=True)))
    blend, user = Blend(run, POPULAR, weights), replace(User.new(run), history=History(("abab", "aa")))
    typed_text = blend.type_text(blend.begin(user), "a")
    few, candidates = (
        blend.candidates("a", Completer.suggest(blend, typed_text, count).suggestions, user.history, count)
        for count in (10, 1000)
    )
    assert blend.suggest(typed_text, 10).suggestions == weights.merge(few, 10)
    suggestions = weights.merge(candidates, 1000)
    none = probabilities(weights, candidates)[-1]
    assert sum(math.exp(s.log_probability) for s in suggestions) == pytest.approx(1 - none)
    logs = [s.log_probability for s in suggestions]
    assert logs == sorted(logs, reverse=True)
    assert len({s.text for s in suggestions}) == len(suggestions)
    scores = [sum(s.parts.values()) for s in suggestions]
    assert [score - scores[0] for score in scores] == pytest.approx([log - logs[0] for log in logs])
    sources = [source for source in SOURCES if source != "none"]
    assert all(list(s.parts) == sources and {*s.source.split("+")} <= {*sources} for s in suggestions)


def test_popular_texts_and_history_remain_when_the_time_is_up() -> None:
    run = make_run()
    user = replace(User.new(run), history=History(("abab",)))
    blend = Blend(run, POPULAR, seconds=0.0)
    result = blend.suggest(blend.type_text(blend.begin(user), "a"))
    assert result.is_cut
    assert {"abab", "abc", "abba"} <= {s.text for s in result.suggestions}
    assert Blend(run, None, seconds=0.0).complete("zzz", user) == []


def test_without_a_user_the_model_alone_suggests() -> None:
    run = make_run()
    completer, blend = Completer(run), Blend(run, POPULAR)
    typed_text = blend.type_text(blend.begin(context={"city": "Oslo"}), "a")
    assert blend.suggest(typed_text, 5) == completer.suggest(typed_text, 5)
    assert blend.complete("a", context={"city": "Oslo"}) == completer.complete("a", context={"city": "Oslo"})


def test_known_texts_in_another_case_come_last() -> None:
    popularity = Popularity.fit(["Abc"] * 9 + ["abba"] * 2 + ["ABBA"], min_count=1)
    weights = replace(weights_of("popularity"), threshold=1.0)  # no inventions
    blend, user = Blend(make_run(), popularity, weights), User.new(make_run())
    assert suggested(blend, "ab", user) == ["abba", "Abc", "ABBA"]
    assert suggested(blend, "aB", user) == ["Abc", "abba", "ABBA"]
    suggestions = blend.complete("ab", replace(user, history=History(("abC",))))
    assert [s.text for s in suggestions if s.text.startswith("ab")] == [s.text for s in suggestions[:2]]
    assert {s.text for s in suggestions} == {"abba", "abC", "Abc", "ABBA"}
    assert sum(math.exp(s.log_probability) for s in suggestions) < 1
    assert [s.log_probability for s in suggestions] == sorted((s.log_probability for s in suggestions), reverse=True)


def test_all_sources_forgive_typos() -> None:
    run = make_run()
    user = replace(User.new(run), history=History(("abccba",)))
    weights = BlendWeights({**dict.fromkeys(FEATURES, 0.0), "popular": 9.0, "own": 9.0})
    blend = Blend(run, Popularity.fit(["abcc"] * 3 + ["acbb"] * 2, min_count=1), weights, typos=1)
    suggestions = blend.complete("acb", user, k=10)
    typos = {s.text: s.typos for s in suggestions}
    assert (typos["acbb"], typos["abcc"], typos["abccba"]) == (0, 1, 1)
    assert [s.typos for s in suggestions] == sorted(s.typos for s in suggestions)
    assert all((s.typos == 0) == s.text.startswith("acb") for s in suggestions)
    alone = Blend(run, blend.popularity).complete("acb", user, k=10)
    assert {s.typos for s in alone} == {0}


@pytest.mark.parametrize(("log_prob", "order"), [(-3.0, "bent bench bnech"), (-1.0, "bent bnech bench")])
def test_invented_texts_follow_more_probable_corrections(log_prob: float, order: str) -> None:
    bench, bent = {"model": 1, "model log p": -2.0, "popular": 1}, {"popular": 1, "model log p": -9.0}
    bnech = {"model": 1, "model log p": log_prob}
    candidates = replace(candidates_of(bnech=bnech, bench=bench, bent=bent, none={}), typos=[0, 1, 0])
    assert [suggestion.text for suggestion in DEFAULT_WEIGHTS.merge(candidates, 10)] == order.split()


def test_no_text_with_typos_replaces_a_known_text_without() -> None:
    rare, frequent = {"own": 1, "own last": 9.0}, {"popular": 1}
    candidates = candidates_of(**{f"wolf {index}": frequent for index in range(5)}, wolverine=rare, none={})
    candidates = replace(candidates, typos=[1, 1, 1, 1, 1, 0])
    for count in (1, 2, 4):
        suggestions = DEFAULT_WEIGHTS.merge(candidates, count)
        assert (suggestions[0].text, len(suggestions)) == ("wolverine", count)


def test_fitted_weights_are_close_to_those_that_generated_the_choices() -> None:
    random = np.random.default_rng(0)
    true = np.clip(random.normal(size=len(FEATURES)), *np.array(list(BOUNDS.values())).T)
    examples = []
    for _ in range(3000):
        features = random.normal(size=(random.integers(2, 9), len(FEATURES)))
        scores = np.exp(features @ true)
        texts = [str(row) for row in range(len(features) - 1)]  # the last row is "none of them"
        examples.append(
            (Candidates(texts, features, [0] * len(texts)), str(random.choice(len(features), p=scores / scores.sum())))
        )
    fitted = BlendWeights.fit(examples)
    assert fitted.array == pytest.approx(true, abs=0.2)
    low, high = np.array(list(BOUNDS.values())).T

    def loss(weights: np.ndarray) -> float:
        total = PENALTY * float(((weights - DEFAULT_WEIGHTS.array) ** 2).sum())
        for candidates, text in examples:
            scores = candidates.features @ weights
            total += float(np.logaddexp.reduce(scores) - scores[int(text)])
        return total

    best = loss(fitted.array)
    for _ in range(10):
        other = np.clip(fitted.array + random.normal(size=len(FEATURES)) * 0.05, low, high)
        assert loss(other) > best
    assert BlendWeights.fit([]) == DEFAULT_WEIGHTS


def test_recent_texts_are_never_below_older_ones() -> None:
    """Even if users enter what they entered longest ago."""
    candidates = candidates_of(
        recent={"own": 1.0, "own last": 0.0}, old={"own": 1.0, "own last": math.log(20)}, none={"none": -9.0}
    )
    recent, old, _ = probabilities(BlendWeights.fit([(candidates, "old")] * 50), candidates)
    assert recent >= old


def test_a_missing_text_is_none_of_the_alternatives() -> None:
    candidates = candidates_of(a={"popular": 1.0}, none={"none": 1.0})
    for share in (0.1, 0.9):
        examples = [(candidates, "a" if number < 400 * share else "missing") for number in range(400)]
        assert probabilities(BlendWeights.fit(examples), candidates)[0] == pytest.approx(share, abs=0.02)


def test_a_run_without_completion_files_has_default_weights_and_no_popular_texts(tmp_path: Path) -> None:
    run = make_run()
    run.folder = tmp_path
    assert BlendWeights.load(tmp_path) == DEFAULT_WEIGHTS
    save_settings(run, LearningRule(rate=0.3), BlendWeights({**DEFAULT_WEIGHTS.values, "own": 5.0}, 0.25))
    assert BlendWeights.load(tmp_path).values["own"] == 5.0
    assert BlendWeights.load(tmp_path).threshold == 0.25
    assert LearningRule.load(tmp_path) == LearningRule(rate=0.3)
    files.write_json(tmp_path / "completion.json", {"format": 1, "weights": {"own": 1}})
    with pytest.raises(UserError, match="expected the weights model, "):
        BlendWeights.load(tmp_path)
    with pytest.raises(UserError, match=r"no popularity\.jsonl; training writes it with --user"):
        Popularity.from_run(run)


def test_each_typo_makes_a_text_less_probable() -> None:
    """A known text with two typos does not precede one with a typo, nor make texts without typos improbable."""
    texts, counts = ["google maps", "goose game", "goolge"], {"google maps": 500, "goose game": 600}
    features = compute_features(texts, {"goolge": -2.0}, counts, History(), 6)
    with_typos, without = Candidates(texts, features, [1, 2, 0]), Candidates(texts[2:], features[2:], [0])
    merged = DEFAULT_WEIGHTS.merge(with_typos, 3)
    assert [suggestion.text for suggestion in merged] == ["goolge", "google maps", "goose game"]
    assert merged[1].log_probability - merged[2].log_probability > 8
    alone = DEFAULT_WEIGHTS.merge(without, 1)[0]
    assert merged[0].log_probability == pytest.approx(alone.log_probability, abs=0.1)
