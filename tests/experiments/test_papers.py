"""All scripts one after another: every command of the overview is among them, and one that fails leaves the others."""

from pathlib import Path

import pytest

import papers
import study

FAKE = """
import sys
with open({log!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
sys.exit({code})
"""


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
