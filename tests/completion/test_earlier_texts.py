"""Tests that completion, replays and the service read the earlier texts of a user as training does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from factorcell.commands.cli.main import main
from factorcell.completion.blend import new_suggester
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, learn_one
from factorcell.completion.replay import context_columns, read_streams
from factorcell.config import HISTORY_COLUMN
from factorcell.data.private_content import is_public
from factorcell.runs.run import Run
from factorcell.service.learning import ServedModel
from factorcell.service.record import Record, StoredText
from tests.service import runs

TEXTS = ("abba", "cab", "a cab", "bac", "abc")
CONTEXT: dict[str, Any] = {"city": "Oslo"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runs.make_run(tmp_path / "run", prompt_history=2)


def learn(run: Run, *texts: str) -> User:
    user = User.new(run)
    for text in texts:
        user = learn_one(run, user, text, CONTEXT)
    return user


def test_completions_follow_the_last_texts_of_the_user(run: Run) -> None:
    user, completer = learn(run, "abba", "cab", "bac"), Completer(run)
    actual = completer.complete("a", user, CONTEXT)
    assert actual == completer.complete("a", user, {**CONTEXT, HISTORY_COLUMN: ["cab", "bac"]})
    without = completer.complete("a", user, {**CONTEXT, HISTORY_COLUMN: []})
    assert actual != without
    texts = [suggestion.text for suggestion in actual]
    log_probs = completer.log_probabilities("a", texts, user, CONTEXT)
    assert log_probs == pytest.approx([suggestion.log_probability for suggestion in actual], rel=1e-4)
    assert completer.complete("a", None, CONTEXT) == completer.complete("a", None, {**CONTEXT, HISTORY_COLUMN: None})


def test_online_learning_follows_the_texts_before_the_learned_text(run: Run) -> None:
    user, learner = learn(run, "abba", "cab"), Learner(run)
    (learned,), nats = learner.learn([user], ["abc"], [CONTEXT])
    context = {**CONTEXT, HISTORY_COLUMN: ["abba", "cab"]}
    (expected,), expected_nats = learner.learn([user], ["abc"], [context])
    assert np.array_equal(learned.vector, expected.vector)
    assert nats.tolist() == expected_nats.tolist()
    (other,), _ = learner.learn([user], ["abc"], [{**CONTEXT, HISTORY_COLUMN: ["cab"]}])
    assert not np.array_equal(learned.vector, other.vector)
    assert learned.history.texts == ("abba", "cab", "abc")


def test_a_replay_scores_texts_as_an_evaluation_of_the_table(run: Run) -> None:
    rows: list[dict[str, Any]] = [
        {"text": text, "who": who, "city": "Nice", "time": number}
        for number, text in enumerate(TEXTS)
        for who in ("eve", "joe")
    ]
    expected = run.score(rows).tolist()
    columns = run.schema.columns(without="who")
    streams = read_streams(rows, run.config, user_column="who", time_column="time", context_columns=columns)
    assert [row[HISTORY_COLUMN] for row in streams[0].rows[:3]] == [[], ["abba"], ["abba", "cab"]]
    learner = Learner(run)
    assert context_columns(run, "who") == learner.columns == ["city", HISTORY_COLUMN]
    for row, expected_nats in zip(streams[0].rows, expected[::2], strict=True):
        contexts = [{name: row[name] for name in learner.columns}]
        assert learner.nats(learner.unknown_vector[None], [row["text"]], contexts) == pytest.approx(
            expected_nats, rel=1e-4
        )


def test_a_user_learned_text_by_text_equals_one_learned_at_once(run: Run) -> None:
    model = ServedModel(run)
    stored = tuple(StoredText(number, text, 0, CONTEXT) for number, text in enumerate(TEXTS, 1))
    at_once = model.learn(replace(Record.new("eve", 0), texts=stored, last_number=len(stored)))
    record, in_parts = replace(at_once, states=()), replace(at_once, states=())
    for count in range(1, len(stored) + 1):
        record = model.learn(replace(record, texts=stored[:count], last_number=count))
        assert model.has_learned(record)
        assert not model.has_learned(in_parts)
        in_parts = model.learn(in_parts, max_texts=1)
    assert record.states == in_parts.states == at_once.states
    (state,) = at_once.states
    assert np.array_equal(User.from_bytes(state.user_bytes).vector, learn(run, *TEXTS).vector)
    assert all(map(is_public, TEXTS))


def test_the_commands_read_earlier_texts_of_users(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suggester = new_suggester(run)
    suggestions = suggester.complete("a", learn(run, "cab", "bac"), {"city": "Oslo"}, k=3)
    words = [
        "complete",
        str(run.folder),
        "a",
        "--history",
        "cab",
        "--history",
        "bac",
        "--context",
        "city=Oslo",
        "--count",
        "3",
    ]
    assert main([*words, "--json"]) == 0
    output = capsys.readouterr().out
    assert all(f'"{suggestion.text}"' in output for suggestion in suggestions)
    table = tmp_path / "log.csv"
    lines = [f"{text},eve,{number},Oslo" for number, text in enumerate(TEXTS)]
    table.write_text("\n".join(["text,who,time,city", *lines]), encoding="utf-8")
    replay = ["replay", str(run.folder), str(table), "--user", "who", "--time", "time", "--out", str(tmp_path / "out")]
    assert main(replay) == 0
    assert "online" in capsys.readouterr().out
