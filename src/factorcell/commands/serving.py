"""The verb that serves people, and the run that it makes if there is none."""

import argparse
from dataclasses import replace
from pathlib import Path

from factorcell.commands import terminal
from factorcell.config import Config, DataConfig, ModelConfig, TrainingConfig, UserError

DEMO = Path("demo")

# Each country stands for a person, whose texts are the names of its places.
DEMO_CONFIG = Config(
    data=DataConfig(user="country", unit="char", min_count=10, max_tokens=30, min_user_count=20),
    model=ModelConfig(
        embedding_size=24, hidden_size=128, variable_size=16, context_size=16, rank=6, adapt=("factor",), output_bias=()
    ),
    training=TrainingConfig(
        epochs=1.0,
        batch_tokens=3000,
        learning_rate=4e-3,
        warmup=0.03,
        evaluations=2,
        log_every=25,
        save_every=400,
    ),
)


def run_serve(given: argparse.Namespace) -> None:
    """`factorcell serve`."""
    try:
        from factorcell.service.http import server
        from factorcell.service.http.site import Settings
        from factorcell.service.privacy import Privacy, duration
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'factorcell[serve]'") from None
    keep = None if given.keep is None else duration(given.keep)
    options = server.ServerOptions(
        given.run,
        given.store or beside(given.run),
        keys=given.keys,
        host=given.host,
        port=given.port,
        workers=given.workers,
        slips=given.slips,
        block=given.block,
        privacy=Privacy(tuple(given.never), keep),
        cached=given.cached,
        settings=Settings(given.deadline_ms / 1000, origins=tuple(given.origin)),
    )
    if given.run == DEMO and not (DEMO / "weights.safetensors").exists():
        make_demo(DEMO)
    server.serve(options, terminal.say)


def beside(run: Path) -> str:
    """The store beside a run."""
    return f"sqlite:///{run.with_name(run.name + '.users.db')}"


def make_demo(folder: Path, epochs: float | None = None) -> None:
    """Train a small run that completes names of places, and learns whose country somebody means (GeoNames)."""
    from factorcell.commands.demo import table
    from factorcell.training.fit import fit

    config = DEMO_CONFIG
    if epochs is not None:
        config = replace(config, training=replace(config.training, epochs=epochs))
    terminal.say(f"training on place names of the world in {folder}, which takes a minute or two, this once")
    fit(table("train"), table("dev"), config, folder, resume=True, say=terminal.say)
