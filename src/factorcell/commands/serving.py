"""The command that serves a run, and the run of place names that it makes for `factorcell serve demo`."""

import argparse
import os
from pathlib import Path
from typing import Any

from factorcell.choices import STORE_VARIABLE
from factorcell.commands import terminal
from factorcell.config import UserError

DEMO = Path("demo")

# Each country is a user, whose texts are the names of its places.
DEMO_SAID: dict[str, dict[str, Any]] = {
    "data": {"user": "country", "max_tokens": 41, "min_user_count": 20},
    "tokenizer": {"kind": "char", "min_count": 10},
    "model": {"adapt": ["factor"], "output_bias": []},
}
DEMO_MINUTES = 1.5
DEMO_HINT = "Type the name of a place, such as Kyo or Lis"


def run_serve(given: argparse.Namespace) -> None:
    try:
        from factorcell.service.http import server
        from factorcell.service.http.site import Settings
        from factorcell.service.privacy import Privacy, parse_duration
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'factorcell[serve]'") from None
    keep = None if given.keep is None else parse_duration(given.keep)
    hint = given.hint or (DEMO_HINT if given.run == DEMO else "")
    beside = f"sqlite:///{given.run.with_name(given.run.name + '.users.db')}"
    options = server.ServerOptions(
        given.run,
        os.environ.get(STORE_VARIABLE, beside) if given.store is None else given.store,
        keys=given.keys,
        host=given.host,
        port=given.port,
        workers=given.workers,
        typos=given.typos,
        precision=given.precision,
        block_list=given.block,
        privacy=Privacy(tuple(given.never), keep),
        cache_size=given.cached,
        settings=Settings(given.deadline_ms / 1000, origins=tuple(given.origin), pad=given.pad, hint=hint),
    )
    if given.run == DEMO and not (DEMO / "weights.safetensors").exists():
        make_demo(DEMO)
    server.serve(options, terminal.notify)


def make_demo(folder: Path, epochs: float | None = None) -> None:
    """Train a small run that completes place names of the world (GeoNames)."""
    from factorcell.commands.demo import table
    from factorcell.training.fit import fit
    from factorcell.training.plan import Budget

    said, budget = DEMO_SAID, Budget(DEMO_MINUTES)
    if epochs is not None:
        said, budget = {**DEMO_SAID, "training": {"epochs": epochs}}, Budget()
    terminal.notify(f"training on place names of the world in {folder}, which takes a minute or two, this once")
    fit(table("train"), table("dev"), said, folder, budget=budget, resume=True, notify=terminal.notify)
