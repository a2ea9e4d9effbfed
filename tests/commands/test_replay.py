"""The command `replay` with a character model, from the table to the tables of results."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factorcell.commands.cli.main import main
from factorcell.completion import replay as replay_module
from factorcell.completion.replay import summarise
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.io import files
from tests.completion.runs import save

TEXTS = ("abcab", "ab", "cab", "cab", "bacab", "abcab", "cabba", "ba", "bab", "abc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run and its popular texts, and a table of texts of five users."""
    run = save(tmp_path / "run")
    TextCounts.of(TEXTS, 2).save(run / POPULARITY)
    rows = [
        {"text": text, "user": f"user {user}", "time": f"2026-01-{20 - place:02}", "city": "Oslo"}
        for user in range(5)
        for place, text in enumerate(TEXTS[user:])
    ]
    files.write_rows(tmp_path / "heldout.jsonl", rows)
    return tmp_path


def command(folder: Path, *more: str, out: str = "out") -> list[str]:
    """Return the command line that compares three systems."""
    tables = [str(folder / "run"), str(folder / "heldout.jsonl"), "--out", str(folder / out)]
    return ["replay", *tables, "--compare", "plain,mpc,history", "--threads", "1", *more]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file without their times."""
    return [{key: row[key] for key in row if not key.endswith("seconds")} for row in files.read_rows(path)]


def test_replay_writes_rows_and_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder)) == 0
    first, header, *lines = capsys.readouterr().out.splitlines()
    assert first == "33 queries of 5 users"
    assert header.split()[:2] == ["system", "MRR"]
    assert [line.split()[0] for line in lines[:3]] == ["plain", "mpc", "history"]
    assert [line.split()[0] for line in lines[3:] if "queries" in line] == ["prefix", "earlier"]
    rows = files.read_rows(folder / "out" / "rows.jsonl")
    assert len(rows) == 3 * 33
    assert files.read_json(folder / "out" / "summary.json") == summarise(rows)
    assert lines[0].split()[1] == f"{summarise(rows)[0]['mrr']:.4f}"
    repeated = [row for row in rows if row["system"] == "history" and row["rank"] is not None]
    assert repeated  # "cab" and "abcab" come twice
    assert all(TEXTS[::-1].index(TEXTS[::-1][row["position"]]) < row["position"] for row in repeated)


def test_a_long_replay_estimates_the_minutes_of_each_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, original = {"plain": 36.0, "mpc": 2.0, "history": 0.0}, replay_module.replay

    def slow_replay(*arguments: Any) -> Iterator[dict[str, Any]]:
        return ({**row, "seconds": seconds[row["system"]]} for row in original(*arguments))

    monkeypatch.setattr(replay_module, "replay", slow_replay)
    assert main(command(folder)) == 0
    assert "estimated minutes of each system: plain 19.8, mpc 1.1, history 0.0" in capsys.readouterr().err


def test_a_replay_needs_a_new_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--json")) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == files.read_json(folder / "out" / "summary.json")
    rows = (folder / "out" / "rows.jsonl").read_bytes()
    assert main(command(folder)) == 2
    assert "exists already" in capsys.readouterr().err
    assert (folder / "out" / "rows.jsonl").read_bytes() == rows


def test_known_users_are_a_group_of_their_own(folder: Path) -> None:
    people = save(folder / "people", data={"user": "city", "context": (), "min_user_count": 1})
    rows = files.read_rows(folder / "heldout.jsonl")
    files.write_rows(folder / "two.jsonl", [*rows, *({**row, "city": "Rome"} for row in rows)])
    words = ["replay", str(people), str(folder / "two.jsonl"), "--out", str(folder / "out"), "--threads", "1"]
    assert main([*words, "--compare", "history,online"]) == 0
    summary = files.read_json(folder / "out" / "summary.json")
    groups = {(row["value"], row["queries"], row["users"]) for row in summary if row["by"] == "user"}
    assert groups == {("with a vector", 33, 1), ("without a vector", 33, 1)}


def test_systems_are_chosen_by_default(folder: Path) -> None:
    words = command(folder)
    index = words.index("--compare")
    assert main([*words[:index], *words[index + 2 :]]) == 0
    assert {row["system"] for row in rows_of(folder / "out" / "rows.jsonl")} == {"plain", "mpc", "history", "known"}


def test_options_limit_the_texts_and_the_time(folder: Path) -> None:
    main(command(folder, "--rows-per-user", "4", out="few"))
    assert max(row["position"] for row in rows_of(folder / "few" / "rows.jsonl")) == 3
    main(command(folder, "--every", "3", out="every"))
    main(command(folder))
    selected, every = (rows_of(folder / out / "rows.jsonl") for out in ("every", "out"))
    assert 0 < len(selected) < len(every) / 2
    assert all(row in every for row in selected)
    main(command(folder, "--seconds", "0", out="hurried"))
    hurried = rows_of(folder / "hurried" / "rows.jsonl")
    assert {row["rank"] for row in hurried if row["system"] == "plain"} == {None}
    assert any(row["rank"] for row in every if row["system"] == "plain")


def test_a_table_without_times_is_read_in_its_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = sorted(files.read_rows(folder / "heldout.jsonl"), key=lambda row: row["time"])
    files.write_rows(folder / "heldout.jsonl", rows)
    assert main(command(folder, out="timed")) == 0
    files.write_rows(folder / "heldout.jsonl", [{k: v for k, v in row.items() if k != "time"} for row in rows])
    capsys.readouterr()
    assert main(command(folder, out="untimed")) == 0
    assert "no column 'time', so the texts of a user are read in the order of the table" in capsys.readouterr().err
    assert rows_of(folder / "untimed" / "rows.jsonl") == rows_of(folder / "timed" / "rows.jsonl")


def test_columns_default_to_those_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = folder / "people"
    save(people, data={"user": "city", "context": (), "min_user_count": 1})
    config = files.read_json(people / "config.json")
    files.write_json(people / "config.json", {**config, "data": {**config["data"], "time": "day"}})
    rows = files.read_rows(folder / "heldout.jsonl")
    dated = [{**row, "day": row["time"], "time": "2026-01-01"} for row in rows]  # by `time` they are in another order
    files.write_rows(folder / "dated.jsonl", dated)

    def replayed(out: str, *more: str) -> list[dict[str, Any]]:
        words = ["replay", str(people), str(folder / "dated.jsonl"), "--out", str(folder / out), "--compare", "online"]
        assert main([*words, "--threads", "1", *more]) == 0
        return rows_of(folder / out / "rows.jsonl")

    default_rows = replayed("own")
    assert {row["user"] for row in default_rows} == {"Oslo"}
    assert default_rows == replayed("same", "--user", "city", "--time", "day")
    assert default_rows != replayed("others", "--time", "time")
    assert {row["user"] for row in replayed("users", "--user", "user")} == {f"user {number}" for number in range(5)}
    for column in ("city", "day"):
        files.write_rows(folder / "heldout.jsonl", [{k: v for k, v in row.items() if k != column} for row in dated])
        words = command(folder)
        words[1] = str(people)
        capsys.readouterr()
        assert main(words) == 2
        error = capsys.readouterr().err
        assert f"heldout.jsonl: no column '{column}'; it has text, " in error
        assert error.count("\n") == 1
    assert main(["tune-online", str(people), str(folder / "heldout.jsonl"), "--threads", "1"]) == 2
    assert "no column 'day'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--compare", "plain,best"], "unknown system 'best'"),
        (["--time", "when"], "no column 'when'; it has text, user, time, city"),
        (["--every", "0"], "--every: expected a whole number from 1"),
        (["--compare", "online"], "the run does not distinguish users"),
    ],
)
def test_errors_are_one_line(more: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out" / "rows.jsonl").exists()


def test_commands_warn_of_a_training_that_has_not_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people = folder / "people"
    save(people, data={"user": "city", "context": (), "min_user_count": 1})
    table = str(folder / "heldout.jsonl")
    commands = (
        ["complete", str(people), "a"],
        ["tune-online", str(people), table, "--optimizer", "sgd"],
        ["replay", str(people), table, "--out", str(folder / "out"), "--compare", "mpc,history,plain,online"],
    )
    TextCounts.of(TEXTS, 2).save(people / POPULARITY)
    row = {"step": 50, "seconds": 1.0, "split": "train"}
    for steps in (50, 1000):
        files.write_rows(people / "log.jsonl", [{**row, "steps": steps}])
        for words in commands:
            shutil.rmtree(folder / "out", ignore_errors=True)
            assert main([*words, "--threads", "1"]) == 0
            errors = capsys.readouterr().err
            assert errors.count("its training stopped (step 50 of 1,000)") == (steps == 1000), words
