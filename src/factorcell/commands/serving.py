"""The commands `serve` and `export`, and the training of the run that `factorcell serve demo` serves."""

import argparse
import os
from pathlib import Path
from typing import Any

from factorcell.commands.cli import options, terminal
from factorcell.evaluation.diagnostics import report_run
from factorcell.io.extras import missing_package_error
from factorcell.options.choices import STORE_VARIABLE
from factorcell.runs.exporting import export
from factorcell.runs.run import Run

DEMO_FOLDER = Path("demo")  # `factorcell serve demo` trains a run of place names here if the folder has none

DEFAULT_STORE_SUFFIX = ".users.db"  # end of the file name of the default store

# Each country is a user; the user's texts are the names of its places.
DEMO_OPTIONS: Any = {"user": "country", "max_tokens": 41, "min_user_count": 20, "tokenizer": "char", "min_count": 10}
DEMO_MINUTES = 1.5  # time limit of the training
DEMO_HINT = "Type the name of a place, such as Kyo or Lis"  # placeholder text of the input box


def run_serve(arguments: argparse.Namespace) -> None:
    """Run `factorcell serve`."""
    try:
        from factorcell.service.http import server
        from factorcell.service.http.application import Settings
        from factorcell.service.privacy import Privacy, parse_duration
    except ModuleNotFoundError as error:
        raise missing_package_error("serving", error.name, "serve") from None
    retention = None if arguments.retention is None else parse_duration(arguments.retention)
    hint = arguments.hint or (DEMO_HINT if arguments.run == DEMO_FOLDER else "")
    default_store = f"sqlite:///{default_store_path(arguments.run)}"
    server_options = server.ServerOptions(
        arguments.run,
        os.environ.get(STORE_VARIABLE, default_store) if arguments.store is None else arguments.store,
        keys=arguments.keys,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        threads=arguments.threads,
        typos=arguments.typos,
        precision=arguments.precision,
        mixture=not arguments.no_ngram_mixture,
        block_list=arguments.block,
        privacy=Privacy(tuple(arguments.withhold), retention),
        cache_size=arguments.cache_size,
        settings=Settings(arguments.deadline_ms / 1000, origins=tuple(arguments.origin), pad=arguments.pad, hint=hint),
    )
    if arguments.run == DEMO_FOLDER and not (DEMO_FOLDER / "weights.safetensors").exists():
        train_demo_run(DEMO_FOLDER)
    server.serve(server_options)


def default_store_path(run_folder: Path) -> Path:
    """Return the path of the default store of `serve`, which is next to the run folder and has its name."""
    # The paths "." and ".." do not contain the name of the folder.
    folder = run_folder if run_folder.name not in ("", "..") else Path(os.path.abspath(run_folder))
    return folder.parent / f"{folder.name}{DEFAULT_STORE_SUFFIX}"


def train_demo_run(folder: Path, epochs: float | None = None) -> None:
    """Train a small run that completes place names (GeoNames); if `epochs` is set, it replaces the time limit."""
    from factorcell.commands.demo import table_path
    from factorcell.training.fit import fit

    duration: dict[str, Any] = {"minutes": DEMO_MINUTES} if epochs is None else {"epochs": epochs}
    terminal.notify(f"{folder}: training on place names; this takes a minute or two and happens only once")
    fit(table_path("train"), dev=table_path("dev"), out=folder, resume=True, **duration, **DEMO_OPTIONS)


def run_export(arguments: argparse.Namespace) -> None:
    """Run `factorcell export`."""
    run = Run.open(arguments.run, mixture=False)
    context = options.parse_context(arguments.context)
    report_run(run, context)
    export(
        run,
        arguments.folder,
        to=arguments.to,
        context=context,
        approximate=arguments.approximate,
        unknown=arguments.unknown,
    )
