"""`classify --points`: results of different tables of points."""

import re
from pathlib import Path

import pytest

from factorcell.commands.cli.main import main
from factorcell.io import files
from tests.small_runs import ROWS, make_run


def test_classifications_by_several_tables_of_points_are_distinguished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", ("lat:number", "lon:number"))
    run.save_weights({})
    places = [{"name": name, "lat": lat, "lon": lon} for name, lat, lon in (("a", 60, 10), ("b", 44, 7), ("c", 0, 0))]
    files.write_rows(tmp_path / "all.jsonl", places)
    files.write_rows(tmp_path / "north.jsonl", places[:2])
    files.write_rows(tmp_path / "test.jsonl", ROWS)
    command = ["classify", str(run.folder), str(tmp_path / "test.jsonl"), "--points"]
    majorities = {}
    for name, options, target in (
        ("all.jsonl", [], "the nearest of 3 points of all.jsonl"),
        ("north.jsonl", [], "the nearest of 2 points of north.jsonl"),
        ("north.jsonl", ["--within", "100"], "the nearest of 2 points of north.jsonl, within 100"),
    ):
        assert main([*command, str(tmp_path / name), *options, "--save"]) == 0
        output = capsys.readouterr().out
        assert "model, uniform priors" in output
        majorities[target] = re.search(r"majority class \(.*\) +(.*)", output)[1]  # type: ignore[index]
    assert main(["report", str(run.folder), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for target in majorities:
        assert page.count(f">accuracy of {target} (model)</td>") == 1


def test_longitudes_may_come_before_latitudes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", ("lat:number", "lon:number"))
    run.save_weights({})
    files.write_rows(tmp_path / "test.jsonl", ROWS)
    shown = []
    for names in (("lat", "lon"), ("lon", "lat")):
        places = {"a": {"lat": 60, "lon": 10}, "b": {"lat": 44, "lon": 7}}
        points = tmp_path / f"{names[0]}.jsonl"
        files.write_rows(
            points, [{"name": name, **{key: place[key] for key in names}} for name, place in places.items()]
        )
        command = ["classify", str(run.folder), str(tmp_path / "test.jsonl"), "--points", str(points)]
        assert main([*command, "--within", "2000"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "majority class" in shown[0]
