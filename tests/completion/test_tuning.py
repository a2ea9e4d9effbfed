"""Compare tuned rates and weights with learning users one by one, from Python and from the command line."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.completion import tuning
from factorcell.completion.blend import DEFAULT_WEIGHTS, FEATURES, Blend, BlendWeights, Candidates, Example
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay import Stream, known_texts_system, read_streams, replay
from factorcell.completion.tuning import (
    candidate_lists,
    measure_blend,
    progressive_sums,
)
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.io import files
from factorcell.runs.run import Run
from tests.completion.runs import CITY, save
from tests.findings import logged_progress
from tests.small_runs import make_letters, with_ngrams

ROWS = [
    {"text": text, "city": f"user {user}", "time": position}
    for user, texts in enumerate((["abc"] * 6, ["cab", "cab", "cabba", "cab"], ["bab"]))
    for position, text in enumerate(texts)
]


def streams(run: Run) -> list[Stream]:
    return read_streams(ROWS, run.config, user_column="city")


def test_perplexity_agrees_with_learning_users_one_by_one() -> None:
    run = make_letters(data=CITY, spread=0.8)
    learner, expected_sums = Learner(run, LearningRule("sgd", 0.05)), []
    for stream in streams(run):
        user, nats, targets = learner.new(), 0.0, 0
        for row in stream.rows:
            (user,), text_nats = learner.learn([user], [row["text"]])
            nats, targets = nats + float(text_nats[0]), targets + len(row["text"]) + 1
        expected_sums.append((nats, targets))
    np.testing.assert_allclose(progressive_sums(learner, streams(run)), expected_sums, rtol=1e-5)


def test_a_mixture_is_tuned_by_its_own_perplexity() -> None:
    run = with_ngrams(make_letters(data=CITY, spread=0.8))
    learner, expected_sums = Learner(run, LearningRule("sgd", 0.05)), []
    for stream in streams(run):
        user, nats = learner.new(), 0.0
        for row in stream.rows:
            nats += float(learner.nats(user.vector[None], [row["text"]])[0])
            (user,), _ = learner.learn([user], [row["text"]])
        expected_sums.append((nats, sum(len(row["text"]) + 1 for row in stream.rows)))
    np.testing.assert_allclose(progressive_sums(learner, streams(run)), expected_sums, rtol=1e-5)


def test_progress_names_the_rule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("factorcell.io.progress.INTERVAL", 0.0)
    run = make_letters(data=CITY, spread=0.8)
    for rule, title in ((LearningRule("sgd", 0.0), "without learning"), (LearningRule("sgd", 0.05), "sgd 0.05")):
        with logged_progress():
            progressive_sums(Learner(run, rule), streams(run))
        assert capsys.readouterr().err.startswith(f"{title}: 0 of 6 texts of each user, ")


def test_the_rule_with_the_lowest_perplexity_is_chosen() -> None:
    run = make_letters(data=CITY, spread=0.8)
    rule, (base, *rows) = tuning.fit_rule(run, streams(run), ["sgd", "adagrad"])
    nats, targets = progressive_sums(Learner(run, LearningRule(rate=0.0)), streams(run)).sum(axis=0)
    assert base == {"optimizer": "none", "rate": 0.0, "perplexity": pytest.approx(math.exp(nats / targets))}
    tried = [(name, rate) for name in ("sgd", "adagrad") for rate in tuning.RATES[name]]
    assert [(row["optimizer"], row["rate"]) for row in rows] == tried
    for row in rows:
        assert row["change"] == pytest.approx(row["perplexity"] / base["perplexity"] - 1)
    best = min(rows, key=lambda row: float(row["perplexity"]))
    assert best["perplexity"] < base["perplexity"]
    assert (rule.optimizer, rule.rate) == (best["optimizer"], best["rate"])
    in_no_time, tried_in_no_time = tuning.fit_rule(run, streams(run), ["sgd", "adagrad"], deadline=0.0)
    assert (in_no_time, len(tried_in_no_time)) == (LearningRule("sgd", 0.003), 2)


def test_training_fits_to_the_first_texts_of_some_users() -> None:
    many = [
        Stream(f"user {number:02}", ({"text": "abc"},) * length, ("a",) * length)
        for number, length in enumerate([3, 40, 12, 25] * 20)
    ]
    for max_texts in (1, 100, 500, 1600, 10_000):
        part = tuning.first_texts(many, max_texts)
        total = sum(len(stream.rows) for stream in part)
        assert 0 < total <= max(tuning.MIN_STREAM_TEXTS, 1.1 * max_texts)
        assert all(len(stream.rows) == len(stream.prefixes) for stream in part)
    assert part == many
    one_busy = [replace(many[1], rows=many[1].rows * 25, prefixes=many[1].prefixes * 25), *many]
    assert tuning.first_texts(one_busy, 10_000) == one_busy
    assert tuning.first_texts([], 100) == []


def test_the_default_rule_stays_unless_another_is_better(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Run.open(save(tmp_path / "run", data=CITY))
    TextCounts.of(["cab", "abc"], 1).save(run.folder / POPULARITY)

    def fit_with(nats: Sequence[float], **options: float) -> tuple[LearningRule, Any]:
        """Fit with these nats of the texts without learning, and with the rates 0.1, 0.03 and 0.3."""
        values = iter(nats)
        monkeypatch.setattr(
            tuning, "progressive_sums", lambda learner, streams: np.array([[next(values), 1.0]] * len(streams))
        )
        settings = tuning.fit_settings(run, streams(run), 100, **options)
        assert settings is not None
        rule, _, row = settings
        assert row["learning_rule"] == str(rule)
        return rule, row

    for nats, rate in (((3.0, 2.0, 2.0, 1.9995), 0.1), ((3.0, 2.0, 2.0, 1.9), 0.3), ((3.0, 1.6, 1.5, 1.7), 0.03)):
        assert fit_with(nats)[0] == LearningRule(rate=rate)
    rule, row = fit_with((3.0, 2.0), seconds=0.0)
    assert (rule, row["users"]) == (LearningRule(), 1)
    assert tuning.fit_settings(run, [Stream("a", ({"text": "ab"},), (None,))], 100) is None


def test_fitted_weights_rank_the_texts_of_users_higher() -> None:
    run = make_letters(data=CITY, spread=0.8)
    popularity = Popularity.fit(["cabba", "cab"], min_count=1)
    lists_of_users = list(candidate_lists(Blend(run, popularity), Learner(run), streams(run)))
    assert len(lists_of_users) == 3
    lists = list(chain.from_iterable(lists_of_users))
    judged = [prefix for stream in streams(run) for prefix in stream.prefixes if prefix is not None]
    assert len(lists) == len(judged) == 11
    assert {text for _, text in lists} == {row["text"] for row in ROWS}
    upside_down = BlendWeights({feature: -DEFAULT_WEIGHTS.values[feature] for feature in FEATURES}, -1.0)

    def mean_rank(lists_to_rank: list[Example], weights: BlendWeights) -> float:
        reciprocal_ranks = []
        for candidates, text in lists_to_rank:
            order = [suggestion.text for suggestion in weights.merge(candidates, 10)]
            reciprocal_ranks.append(1 / (order.index(text) + 1) if text in order else 0)
        return float(np.mean(reciprocal_ranks))

    assert mean_rank(lists, BlendWeights.fit(lists)) > mean_rank(lists, upside_down)
    row = row_of_all = measure_blend(lists_of_users)
    assert (row["queries"], row["users"]) == (11, 3)
    # With fewer users than folds, the weights for a user are fitted to all other users.
    others = [list(chain(*lists_of_users[:user], *lists_of_users[user + 1 :])) for user in range(3)]
    expected = [mean_rank(lists_of_users[user], BlendWeights.fit(others[user])) for user in range(3)]
    assert row["mrr"] == pytest.approx(np.average(expected, weights=list(map(len, lists_of_users))))
    assert row["gain_over_known"] == pytest.approx(row["mrr"] - row["mrr_known"])
    alone = measure_blend(lists_of_users[:1])
    assert alone["mrr"] == pytest.approx(mean_rank(lists_of_users[0], DEFAULT_WEIGHTS)), "there is no other user"
    rows = list(replay({"known": known_texts_system(popularity)}, streams(run), "text"))
    assert row_of_all["mrr_known"] == pytest.approx(np.mean([1 / (row["rank"] or math.inf) for row in rows]))


def test_no_user_is_ranked_with_weights_that_were_fitted_to_the_user() -> None:
    rows = ({"popular": 1.0, "popular log share": -1.0}, {"own": 1.0, "own log share": -1.0}, {"none": 1.0})
    features = np.array([[row.get(name, 0.0) for name in FEATURES] for row in rows])
    candidates = Candidates(["a popular text", "an own text"], features, [0, 0])
    lists_of_users: list[list[Example]] = [[(candidates, text)] * 40 for text in candidates.texts]
    for lists in lists_of_users:
        best, _ = BlendWeights.fit(lists).merge(candidates, 10)
        assert best.text == lists[0][1], "the weights of a user rank the text of this user first"
    assert measure_blend(lists_of_users)["mrr"] == pytest.approx(1 / 2)


def test_the_model_alone_is_measured_on_its_own_suggestions() -> None:
    run = make_letters(data=CITY, spread=0.8)
    popularity, completer, learner = Popularity.fit(["cabba", "cab"], min_count=1), Completer(run), Learner(run)
    ranks = []
    for stream in streams(run):
        user = learner.new()
        for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
            if prefix is not None:
                texts = [suggestion.text for suggestion in completer.complete(prefix, user)]
                ranks.append(1 / (texts.index(row["text"]) + 1) if row["text"] in texts else 0)
            (user,), _ = learner.learn([user], [row["text"]])
    row = measure_blend(list(candidate_lists(Blend(run, popularity), learner, streams(run))))
    assert row["mrr_model"] == pytest.approx(np.mean(ranks))


def test_unknown_values_are_read_as_the_option_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", data={**CITY, "context": ("text:category",)})
    TextCounts.of(["cab", "abc"], 1).save(folder / POPULARITY)
    files.write_rows(tmp_path / "dev.jsonl", ROWS)
    command = ["tune-online", str(folder), str(tmp_path / "dev.jsonl"), "--optimizer", "sgd", "--threads", "1"]
    assert main([*command, "--unknown", "error"]) == 2
    assert "text 'bab' was never seen in training" in capsys.readouterr().err
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "perplexities of all 11 texts of 3 users" in captured.out
    assert "mean reciprocal rank on 11 of these texts, by 3 users (blend: " in captured.out
    assert "unseen or rare values in text, read as the unknown value" in captured.err


def test_tune_online_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", data=CITY)
    TextCounts.of(["cab", "abc"], 1).save(folder / POPULARITY)
    files.write_rows(tmp_path / "dev.jsonl", ROWS)
    command = ["tune-online", str(folder), str(tmp_path / "dev.jsonl"), "--optimizer", "sgd", "--threads", "1"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    run = Run.open(folder)
    assert f"{folder}: learning rule set to " in shown
    assert all(f"  {name:<14} 0." in shown for name in ("blend", "model alone", "known texts"))
    assert "  gain over known " in shown
    assert LearningRule.load(run.folder).optimizer == "sgd"
    assert BlendWeights.load(run.folder) != DEFAULT_WEIGHTS
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tried = {row["rate"]: row["perplexity"] for row in rows if row.get("optimizer") == "sgd"}
    rate = LearningRule.load(run.folder).rate
    assert tried[rate] <= (1 + tuning.MIN_CHANGE) * min(tried.values())
    assert BlendWeights(rows[-1]["weights"], rows[-1]["threshold"]) == BlendWeights.load(run.folder)
    assert main([*command, "--max-norm", "0"]) == 0
    assert ", max_norm 0 (completion.json)" in capsys.readouterr().out
    assert LearningRule.load(run.folder) == LearningRule("sgd", rate, 0)
    before = (folder / "completion.json").read_bytes()
    assert main([*command, "--minutes", "0.0001"]) == 0
    assert (folder / "completion.json").read_bytes() != before
    assert main([*command, "--minutes", "0"]) == 2
    assert "--minutes: expected a number above 0" in capsys.readouterr().err
    assert main([*command, "--max-norm", "-1"]) == 2
    assert "--max-norm: expected a number from 0" in capsys.readouterr().err
    plain = save(tmp_path / "plain")
    assert main(["tune-online", str(plain), str(tmp_path / "dev.jsonl")]) == 2
    assert "train it with --user" in capsys.readouterr().err
