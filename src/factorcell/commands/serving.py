"""The verbs that serve people."""

import argparse
from pathlib import Path

from factorcell.commands import terminal
from factorcell.config import UserError

NEEDED = "serving needs %s: pip install 'factorcell[serve]'"


def run_serve(given: argparse.Namespace) -> None:
    """`factorcell serve`."""
    try:
        from factorcell.service.http import server
        from factorcell.service.http.site import Settings
        from factorcell.service.privacy import Privacy, duration
    except ModuleNotFoundError as error:
        raise UserError(NEEDED % error.name) from None
    keep = None if given.keep is None else duration(given.keep)
    options = server.ServerOptions(
        given.run,
        given.store or beside(given.run),
        host=given.host,
        port=given.port,
        workers=given.workers,
        slips=given.slips,
        block=given.block,
        privacy=Privacy(tuple(given.never), keep),
        cached=given.cached,
        settings=Settings(given.deadline_ms / 1000),
    )
    server.serve(options, terminal.say)


def beside(run: Path) -> str:
    """The store beside a run."""
    return f"sqlite:///{run.with_name(run.name + '.users.db')}"
