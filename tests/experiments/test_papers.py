"""All scripts one after another: every command of the overview is among them, and one that fails leaves the others."""

import tomllib
from pathlib import Path

import pytest

import papers
import study
from pages import overview
from pages.results import Results

FAKE = """
import sys
with open({log!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit({code})
"""


def test_every_table_has_its_command() -> None:
    """What the overview names is run, and what is run exists; runs that others are measured in come first."""
    printed = tomllib.loads((study.HERE / "published.toml").read_text(encoding="utf-8"))
    lines = overview.lines(lambda name, base="": Results.of([]), printed)
    named = {line.command for line in lines} - {"", "ratings sheet imdb"}  # that wants people
    commands = [" ".join(command) for command in papers.COMMANDS]
    of_sets = [command.partition(" ") for command in named]  # of several sets a command each
    assert {f"{name} {one}".strip() for name, _, sets in of_sets for one in sets.split(", ")} <= set(commands)
    assert len(set(commands)) == len(commands)
    assert all((study.HERE / f"{script}.py").exists() for script, *_ in papers.COMMANDS)
    for first, second in (
        ("tacl hotels", "thesis_specificity hotels"),
        ("tacl_trials hotels", "thesis_specificity ratings_trials"),
        ("thesis_sparse", "thesis_finetuning"),
    ):
        assert commands.index(first) < commands.index(second)


def test_the_whole_is_counted() -> None:
    """Rows that are wanted and finished, and hours of what is trained; those measured in runs of others have none."""
    rows = [
        {"row": "unadapted", "seed": 1, "minutes": 30.0},
        {"row": "unadapted", "seed": 7, "minutes": 30.0},
        {"row": "of before", "seed": 0, "minutes": 0.0},
    ]
    wanted = {"tacl_hotels", "specificity_hotels"}
    text = papers.whole(lambda name: rows if name in wanted else [])
    lines = {line.split(" | ")[0][2:]: line.strip(" |").split(" | ")[1:] for line in text.splitlines()}
    assert lines["`tacl hotels`"] == ["12", "1", "1", "1.0"]
    assert lines["`thesis_specificity hotels`"] == ["12", "1", "0", "0.0"]
    assert lines["`family`"][:2] == ["92", "0"]
    every = [papers.experiment(*command) for command in papers.COMMANDS]
    assert len({one.name for one in every}) == len(every)
    assert lines["all"] == [f"{sum(len(one.trainings()) for one in every):,}", "2", "1", "1.0"]
    assert [len(papers.experiment("tacl_trials", "imdb").trainings()), len(every[0].trainings(["unadapted"]))] == [
        42,
        3,
    ]


@pytest.mark.parametrize("command", papers.COMMANDS, ids=" ".join)
def test_rows_that_are_kept_are_those_of_today(command: tuple[str, ...], tmp_path: Path) -> None:
    """With the rows of the study at hand nothing is trained again, whatever default has changed since."""
    of = papers.experiment(*command)
    kept = study.HERE / "results"
    assert study.Job(of, tmp_path, tmp_path, kept, of.trainings(), 1, 1, False, ()).missing() == []


def scripts(folder: Path, **codes: int) -> list[str]:
    """Scripts that end with these codes and write down their arguments."""
    for name, code in codes.items():
        (folder / f"{name}.py").write_text(FAKE.format(log=str(folder / "log"), code=code))
    return ["--data", "d", "--out", "o"]


def test_one_that_fails_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = scripts(tmp_path, good=0, bad=1)
    assert papers.main(given, (("bad", "x"), ("good", "y")), tmp_path) == 1
    assert (tmp_path / "log").read_text() == "x --data d --out o\ny --data d --out o\n"
    assert "failed: bad x" in capsys.readouterr().err
    assert papers.main(given, (("good",),), tmp_path) == 0


def test_who_is_stopped_stops(tmp_path: Path) -> None:
    given = scripts(tmp_path, stopped=study.STOPPED, good=0)
    assert papers.main(given, (("stopped", "x"), ("good", "y")), tmp_path) == study.STOPPED
    assert (tmp_path / "log").read_text() == "x --data d --out o\n"


def test_rows_are_those_of_each_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert papers.main(["--data", "d", "--out", "o", "--only", "factorcell"], ()) == 2
    assert "rows are those of each script" in capsys.readouterr().err
