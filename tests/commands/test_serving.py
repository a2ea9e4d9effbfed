"""The verb that serves: what it is given reaches the server, and the demo makes a run that can be served."""

import argparse
from pathlib import Path

import pytest

from factorcell.commands import main, serving
from factorcell.commands.main import find_commands, make_parser
from factorcell.completion.blend import Blend
from factorcell.model.run import Run
from factorcell.service.http import server
from factorcell.service.http.server import ServerOptions
from factorcell.service.learning import ServedModel


def parsed(words: str) -> argparse.Namespace:
    return make_parser(find_commands(["serve"])).parse(words.split())


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[ServerOptions] = []
    monkeypatch.setattr(server, "serve", lambda options, say: served.append(options))
    words = "runs/qac --port 0 --host ::1 --keep 90d --never x+ --workers 3 --deadline-ms 40 --origin https://a.example"
    serving.run_serve(parsed(f"{words} --keys k.toml --block b.txt --typos 1 --cached 7 --pad 4096 --precision auto"))
    (one,) = served
    assert (one.run, one.store) == (Path("runs/qac"), "sqlite:///runs/qac.users.db")
    assert (one.host, one.port, one.workers, one.typos, one.cache_size) == ("::1", 0, 3, 1, 7)
    assert (one.precision, parsed("runs/qac").precision) == ("auto", "float32")
    assert (one.keys, one.block_list) == (Path("k.toml"), Path("b.txt"))
    assert (one.privacy.retention, one.privacy.withheld_patterns) == (90 * 86_400, ("x+",))
    assert (one.settings.deadline, one.settings.origins, one.settings.pad) == (0.04, ("https://a.example",), 4096)


def test_where_people_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served: list[ServerOptions] = []
    monkeypatch.setattr(server, "serve", lambda options, say: served.append(options))
    monkeypatch.delenv("FACTORCELL_STORE", raising=False)
    serving.run_serve(parsed("runs/qac"))
    monkeypatch.setenv("FACTORCELL_STORE", "sqlite:///there.db")
    serving.run_serve(parsed("runs/qac"))
    serving.run_serve(parsed("runs/qac --store sqlite:///said.db"))
    assert [one.store for one in served] == [
        "sqlite:///runs/qac.users.db",
        "sqlite:///there.db",
        "sqlite:///said.db",
    ]


@pytest.mark.parametrize(
    "words",
    [
        "runs/x --port 70000",
        "runs/x --workers 0",
        "runs/x --deadline-ms 0",
        "runs/x --keep soon",
        "runs/x --never (",
        "runs/x --pad -1",
    ],
)
def test_what_cannot_be_served(words: str) -> None:
    assert main.main(["serve", *words.split()]) == 2


@pytest.mark.slow
def test_demo_completes_and_tells_people_apart(tmp_path: Path) -> None:
    serving.make_demo(tmp_path / "demo", epochs=0.002)
    model = ServedModel(Run.open(tmp_path / "demo"))
    model.probe()
    assert isinstance(model.completer, Blend)
    assert model.learner.variable.source_column == "country"
