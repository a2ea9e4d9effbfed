"""Completion and online learning on the command line and in the terminal."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from factorcell.commands.cli.main import main
from factorcell.completion.blend import INDICATORS, new_suggester
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, learn_one
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.runs.run import Run
from tests.small_runs import make_letters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with a model of letters, cities as users, and popular texts."""
    source_run = make_letters(data={"user": "city", "context": (), "min_user_count": 1}, spread=0.8)
    run = Run.create(tmp_path / "run", source_run.config, source_run.tokenizer, source_run.schema)
    run.model.load_state_dict(source_run.model.state_dict())
    run.save_weights({})
    TextCounts({"abc": 5, "abba": 3, "cab": 4}, 12).save(run.folder / POPULARITY)
    return run.folder


def test_history_and_explanation_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["complete", str(folder), "a", "--threads", "1"]
    assert (
        main(
            [
                *command,
                "--history",
                "acca",
                "--history",
                " acca ",
                "--history=",
                "--history",
                "b",
                "--explain",
                "--count",
                "3",
            ]
        )
        == 0
    )
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "share", "source", "probability", *INDICATORS]
    assert len(lines) == 3
    scores = [sum(map(float, line.split()[4:])) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert main([*command, "--history", "acca", "--history", "b", "--explain", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "acca" in [row.get("text") for row in rows]
    assert main([*command, "--context", "city=Oslo"]) == 0
    shown = capsys.readouterr().out.splitlines()[1:]
    suggestions = Completer(Run.open(folder)).complete("a", context={"city": "Oslo"})
    assert [line.split()[0] for line in shown] == [s.text for s in suggestions], "a known user has no history to blend"
    assert main([*command, "--context", "city=Oslo", "--explain"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0].split() == ["text", "probability"]
    assert output.err.splitlines()[-1].startswith("--explain: all suggestions are from the model alone")
    for wrong, message in (
        (
            ["--context", "city=Oslo", "--history", "a"],
            "--history sets the earlier texts of a new user, but --context city names a user of the training table",
        ),
        (
            ["--context", "city=Olso"],
            "--context city: expected a frequent user of training, got another name; for a new user",
        ),
    ):
        assert main([*command, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_text_of_the_history_may_contain_semicolons(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", str(folder), "ac", "--history", "acc; ab", "--history", "acb", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"acc; ab", "acb"} <= {row["text"] for row in rows if "history" in row["source"]}


def test_a_history_requires_a_model_that_is_adapted_to_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options, reason in (
        ("alone", {"data": {"context": ()}}, "the run does not distinguish users; train it with --user COLUMN"),
        (
            "unadapted",
            {"data": {"user": "city", "context": (), "min_user_count": 1}, "adapt": (), "output_bias": ()},
            "the model is not adapted to users; train it with --adapt factor or concat",
        ),
    ):
        source_run = make_letters(**options)
        run = Run.create(tmp_path / name, source_run.config, source_run.tokenizer, source_run.schema)
        run.save_weights({})
        assert main(["complete", str(run.folder), "a", "--history", "ab"]) == 2
        assert f"{run.folder}: {reason}" in capsys.readouterr().err


def test_probabilities_are_those_of_the_model_for_all_users(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows have the probability of the model; the table shows the share of a blend instead."""
    run = Run.open(folder)
    command, completer, learner = ["complete", str(folder), "a", "--threads", "1"], Completer(run), Learner(run)
    user = learn_one(run, User.new(run), "acca")

    def nats(text: str, typing_user: User | None) -> float:
        """Return the nats of the whole text."""
        known = run.score({"text": text, "city": "Oslo"})[0]
        return float(known if typing_user is None else learner.nats(typing_user.vector[None], [text])[0])

    for arguments, typing_user, context in (
        (["--context", "city=Oslo"], None, {"city": "Oslo"}),
        (["--history", "acca"], user, {}),
    ):
        best = completer.complete("a", typing_user, context, k=1)[0]
        typed = nats(best.text, typing_user) + best.log_probability  # nats of the "a" that all texts begin with
        assert main([*command, *arguments, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == 10
        expected = [np.exp(typed - nats(row["text"], typing_user)) for row in rows]
        assert [row["probability"] for row in rows] == pytest.approx(expected, abs=1e-5)
        assert main([*command, *arguments]) == 0
        header, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
        assert header == (["text", "probability"] if typing_user is None else ["text", "share", "source"])
        assert [line[0] for line in lines] == [row["text"] for row in rows]
        shares = [float(line[1]) for line in lines]
        assert shares == sorted(shares, reverse=True)
        assert shares == pytest.approx([np.exp(row["log_probability"]) for row in rows], rel=0.05)
        assert typing_user is None or [line[2] for line in lines] == [row["source"] for row in rows]
    assert not np.allclose(shares, [row["probability"] for row in rows], atol=0.01)


def test_the_history_is_found_in_lower_and_upper_case(tmp_path: Path) -> None:
    source_run = make_letters(data={"user": "city", "context": (), "min_user_count": 1, "lowercase": True})
    run = Run.create(tmp_path / "run", source_run.config, source_run.tokenizer, source_run.schema)
    run.save_weights({})
    TextCounts({"abc": 5}, 5).save(run.folder / POPULARITY)
    run = Run.open(run.folder)
    user = learn_one(run, User.new(run), "Abca")
    for prefix in ("ab", "Ab"):
        suggestions = new_suggester(run).complete(prefix, user)
        assert "history" in next(s.source for s in suggestions if s.text == "abca")


def test_no_source_suggests_texts_that_are_not_allowed(folder: Path) -> None:
    run = Run.open(folder)
    unfiltered, filtered = new_suggester(run), new_suggester(run, is_allowed=lambda text: "bb" not in text)
    user = learn_one(run, learn_one(run, User.new(run), "abba"), "abbc")
    suggestions = unfiltered.complete("a", user)
    assert {"abba", "abbc"} <= {s.text for s in suggestions}
    suggestions = filtered.complete("a", user)
    assert len(suggestions) == 10
    assert [s.text for s in suggestions if "bb" in s.text] == []
    assert "abc" in [s.text for s in suggestions if "popularity" in s.source]


def test_threads_get_the_same_results_as_single_users_bit_for_bit(folder: Path) -> None:
    run = Run.open(folder)
    suggester = new_suggester(run)
    random = np.random.default_rng(0)
    user_texts = [["".join(random.choice(list("abc"), 5)) for _ in range(3)] for _ in range(16)]

    def simulate(texts: list[str]) -> list[object]:
        user, results = User.new(run), list[object]()
        for text in texts:
            results.append(suggester.suggest(suggester.type_text(suggester.begin(user), text[:2]), 5))
            user = learn_one(run, user, text)
            results.append(user.to_bytes())
        return results

    alone = [simulate(texts) for texts in user_texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(simulate, user_texts))
    assert together == alone
    assert len({str(lived) for lived in alone}) == 16
