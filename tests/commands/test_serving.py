"""The command `serve`: its options reach the server, and the demo trains a run that can be served."""

import argparse
from pathlib import Path

import pytest

from factorcell.commands import serving
from factorcell.commands.cli import main
from factorcell.commands.cli.main import make_parser
from factorcell.completion.blend import Blend
from factorcell.runs.run import Run
from factorcell.service.http import server
from factorcell.service.http.server import ServerOptions
from factorcell.service.learning import ServedModel


def parse(words: str) -> argparse.Namespace:
    return make_parser("serve").parse(words.split())


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[ServerOptions] = []
    monkeypatch.setattr(server, "serve", lambda options: served.append(options))
    words = "runs/qac --port 0 --host ::1 --retention 90d --withhold x+ --workers 3 --deadline-ms 40"
    words += " --origin https://a.example --no-ngram-mixture --threads 5"
    serving.run_serve(
        parse(f"{words} --keys k.toml --block b.txt --typos 1 --cache-size 7 --pad 4096 --precision bfloat16")
    )
    (options,) = served
    assert (options.run, options.store) == (Path("runs/qac"), f"sqlite:///{Path.cwd()}/runs/qac.users.db")
    assert (options.host, options.port, options.workers, options.typos, options.cache_size) == ("::1", 0, 3, 1, 7)
    assert (options.precision, parse("runs/qac").precision) == ("bfloat16", "auto")
    assert not options.mixture
    assert options.threads == 5
    assert (options.keys, options.block_list) == (Path("k.toml"), Path("b.txt"))
    assert (options.privacy.retention, options.privacy.withheld_patterns) == (90 * 86_400, ("x+",))
    assert (options.settings.deadline, options.settings.origins, options.settings.pad) == (
        0.04,
        ("https://a.example",),
        4096,
    )


def test_the_store_defaults_to_the_environment_or_a_file_next_to_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[ServerOptions] = []
    monkeypatch.setattr(server, "serve", lambda options: served.append(options))
    monkeypatch.delenv("FACTORCELL_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    serving.run_serve(parse("runs/qac"))
    serving.run_serve(parse("."))
    monkeypatch.setenv("FACTORCELL_STORE", "sqlite:///variable.db")
    serving.run_serve(parse("runs/qac"))
    serving.run_serve(parse("runs/qac --store sqlite:///option.db"))
    assert [options.store for options in served] == [
        f"sqlite:///{tmp_path}/runs/qac.users.db",
        f"sqlite:///{tmp_path}.users.db",
        "sqlite:///variable.db",
        "sqlite:///option.db",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "runs/x --port 70000",
        "runs/x --workers 0",
        "runs/x --threads -1",
        "runs/x --deadline-ms 0",
        "runs/x --retention soon",
        "runs/x --withhold (",
        "runs/x --pad -1",
    ],
)
def test_invalid_options_are_errors(words: str) -> None:
    assert main.main(["serve", *words.split()]) == 2


@pytest.mark.slow
def test_the_demo_run_completes_and_distinguishes_users(tmp_path: Path) -> None:
    serving.train_demo_run(tmp_path / "demo", epochs=0.002)
    model = ServedModel(Run.open(tmp_path / "demo"))
    model.probe()
    assert isinstance(model.completer, Blend)
    assert model.learner.variable.source_column == "country"
