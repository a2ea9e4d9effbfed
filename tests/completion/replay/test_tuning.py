"""Compare tuned rates and weights with learning users one by one, from Python and from the command line."""

import json
import math
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.completion.blend import DEFAULT_WEIGHTS, FEATURES, Blend, BlendWeights
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.popularity import Popularity
from factorcell.completion.replay.streams import Stream, read_streams
from factorcell.completion.replay.tuning import (
    Example,
    candidate_lists,
    compare_with_model,
    progressive_sums,
    try_rates,
)
from factorcell.config import UserError
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run
from tests.completion.replay.test_systems import save
from tests.findings import logged_progress
from tests.small_runs import make_letters, with_ngrams

CITY = {"user": "city", "context": (), "min_user_count": 1}
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
    monkeypatch.setattr("factorcell.progress.FIRST_DELAY", 0.0)
    run = make_letters(data=CITY, spread=0.8)
    for rule, title in ((LearningRule("sgd", 0.0), "without learning"), (LearningRule("sgd", 0.05), "sgd 0.05")):
        with logged_progress():
            progressive_sums(Learner(run, rule), streams(run))
        assert capsys.readouterr().err.startswith(f"{title}: 0 of 6 texts of each user, ")


def test_rules_have_intervals_over_users() -> None:
    run = make_letters(data=CITY, spread=0.8)
    many_rows = [{**row, "city": f"{row['city']} {copy}"} for copy in range(8) for row in ROWS]
    many_streams = read_streams(many_rows, run.config, user_column="city")
    base, *others = try_rates(run, many_streams, ["sgd"])
    assert base["perplexity_low"] < base["perplexity"] < base["perplexity_high"]
    for row in others:
        assert row["change"] == pytest.approx(row["perplexity"] / base["perplexity"] - 1)
        assert row["change_low"] <= row["change"] <= row["change_high"]
    assert min(row["change_high"] for row in others) < 0, "learning is significantly better than no learning"
    few_users, *_ = try_rates(run, streams(run), ["sgd"])
    assert few_users["perplexity_low"] is None


def test_the_search_ends_when_no_neighbouring_rate_is_better() -> None:
    run = make_letters(data=CITY, spread=0.8)
    rows = list(try_rates(run, streams(run), ["sgd", "adagrad"]))
    nats, targets = progressive_sums(Learner(run, LearningRule("sgd", 0.0)), streams(run)).sum(axis=0)
    assert (rows[0]["optimizer"], rows[0]["rate"]) == ("none", 0.0)
    assert rows[0]["perplexity"] == pytest.approx(math.exp(nats / targets))
    for name in ("sgd", "adagrad"):
        tried = {row["rate"]: row["perplexity"] for row in rows if row["optimizer"] == name}
        best = min(tried, key=tried.__getitem__)
        assert tried[best] < rows[0]["perplexity"]
        for factor in (3.0, math.sqrt(3.0)):
            assert {float(f"{best * factor:.3g}"), float(f"{best / factor:.3g}")} <= set(tried) or factor == 3.0
    with pytest.raises(UserError, match="the table has no texts"):
        list(try_rates(run, [], ["sgd"]))


def test_fitted_weights_rank_the_texts_of_users_higher() -> None:
    run = make_letters(data=CITY, spread=0.8)
    popularity = Popularity.fit(["cabba", "cab"], min_count=1)
    completer, learner = Completer(run), Learner(run)
    lists_of_users = list(candidate_lists(completer, learner, popularity, streams(run)))
    assert len(lists_of_users) == 3
    lists = list(chain.from_iterable(lists_of_users))
    judged = [prefix for stream in streams(run) for prefix in stream.prefixes if prefix is not None]
    assert len(lists) == len(judged) == 11
    assert {text for _, text in lists} == {row["text"] for row in ROWS}
    upside_down = BlendWeights({feature: -DEFAULT_WEIGHTS.values[feature] for feature in FEATURES})

    def mean_rank(lists_to_rank: list[Example], weights: BlendWeights) -> float:
        blend, reciprocal_ranks = Blend(completer, popularity, weights), []
        for candidates, text in lists_to_rank:
            order = [suggestion.text for suggestion in blend.merge(candidates, 10)]
            reciprocal_ranks.append(1 / (order.index(text) + 1) if text in order else 0)
        return float(np.mean(reciprocal_ranks))

    assert mean_rank(lists, BlendWeights.fit(lists)) > mean_rank(lists, upside_down)
    row = compare_with_model(completer, popularity, lists_of_users)
    assert (row["queries"], row["users"]) == (11, 3)
    # With fewer users than folds, the weights for a user are fitted to all other users.
    others = [list(chain(*lists_of_users[:user], *lists_of_users[user + 1 :])) for user in range(3)]
    expected = [mean_rank(lists_of_users[user], BlendWeights.fit(others[user])) for user in range(3)]
    assert row["mrr"] == pytest.approx(np.average(expected, weights=list(map(len, lists_of_users))))
    assert row["mrr_difference"] == pytest.approx(row["mrr"] - row["mrr_model"])
    alone = compare_with_model(completer, popularity, lists_of_users[:1])
    assert alone["mrr"] == pytest.approx(mean_rank(lists_of_users[0], DEFAULT_WEIGHTS)), "there is no other user"


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
    lists_of_users = list(candidate_lists(completer, learner, popularity, streams(run)))
    row = compare_with_model(completer, popularity, lists_of_users)
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
    assert "perplexity change by learning users: " in captured.out
    assert " (all 11 texts of 3 users, also used to choose the rate)\n" in captured.out
    assert "mean reciprocal rank on 11 of these texts, by 3 users (blend: " in captured.out
    assert "values that training did not see in text, read as the unknown value" in captured.err


def test_tune_online_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", data=CITY)
    TextCounts.of(["cab", "abc"], 1).save(folder / POPULARITY)
    files.write_rows(tmp_path / "dev.jsonl", ROWS)
    command = ["tune-online", str(folder), str(tmp_path / "dev.jsonl"), "--optimizer", "sgd", "--threads", "1"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    run = Run.open(folder)
    assert f"{folder}: learning rule set to " in shown
    assert "  blend        0." in shown
    assert "  model alone  0." in shown
    assert "  difference   " in shown
    assert LearningRule.load(run.folder).optimizer == "sgd"
    assert BlendWeights.load(run.folder) != DEFAULT_WEIGHTS
    assert main([*command, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tried = {row["rate"]: row["perplexity"] for row in rows if row.get("optimizer") == "sgd"}
    assert LearningRule.load(run.folder).rate == min(tried, key=tried.__getitem__)
    assert BlendWeights(rows[-1]["weights"]) == BlendWeights.load(run.folder)
    assert main([*command, "--max-norm", "0"]) == 0
    assert ", max_norm 0 (online.json)" in capsys.readouterr().out
    assert LearningRule.load(run.folder) == LearningRule("sgd", min(tried, key=tried.__getitem__), 0)
    assert main([*command, "--max-norm", "-1"]) == 2
    assert "max_norm is -1; it must be at least 0" in capsys.readouterr().err
    plain = save(tmp_path / "plain")
    assert main(["tune-online", str(plain), str(tmp_path / "dev.jsonl")]) == 2
    assert "train it with --user" in capsys.readouterr().err
