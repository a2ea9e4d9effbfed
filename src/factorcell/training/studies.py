"""Studies of Optuna: a file in the folder of a search, or tables of PostgreSQL that several processes share.

A process has a lock on each trial that it trains, which the system or the server releases when the process ends. A
trial that is unfinished and not locked is therefore one of a process that has died, and another process resumes it.
"""

import json
import platform
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from factorcell.errors import UserError
from factorcell.io import files, input_files, lock
from factorcell.io.extras import import_extra
from factorcell.training.fit import check_equal_options

if TYPE_CHECKING:
    import optuna

NAME, JOURNAL = "factorcell", "study.journal"  # of a study in a folder
MACHINE = "machine"  # attribute of a trial of a shared study: the name of the machine that trained it
SCHEME, DRIVER = "postgresql://", "postgresql+psycopg"
CHOICE_LOCK = 0x66637475  # key of the lock for creating tables and choosing trials: the letters "fctu" in ASCII
# A connection that is idle during a training stays open, and the server notices within a minute that a machine is off.
KEEP_ALIVE: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
SESSION_OPTIONS = " ".join(f"-c tcp_{name}={value}" for name, value in KEEP_ALIVE.items())


def import_optuna() -> Any:
    """Return the module `optuna`; raise a `UserError` if it is not installed."""
    optuna = import_extra("optuna", "a search for options", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """A study in a folder that this process has locked, so that no other process trains its trials.

    Attributes:
        optuna: The study of Optuna.
        where: The folder or the database, for messages.
    """

    def __init__(self, storage: "optuna.storages.BaseStorage", name: str, where: str) -> None:
        """Open the study `name`, or create it."""
        self.where, self._storage = where, storage
        study = import_optuna().create_study(storage=storage, study_name=name, load_if_exists=True)
        self.optuna: optuna.Study = study

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process choose a trial or write results."""
        yield

    def lock_trial(self, number: int) -> bool:
        """Lock a trial until this process ends; return whether no other process trains it."""
        return True

    def check_description(self, description: files.Row) -> None:
        """Raise a `UserError` if the study was created with another description."""
        description = json.loads(json.dumps(description))  # with lists instead of tuples, as in the study
        with self.locked():
            check_equal_options(self.where, self.optuna.user_attrs.get("description", description), description)
            self.optuna.set_user_attr("description", description)

    def next_trial(self, trials: int, distributions: dict[str, Any], seed: int) -> "optuna.Trial | None":
        """Return an unfinished trial that no process trains, or else a new one; None if the study has all trials."""
        optuna = import_optuna()
        with self.locked():
            existing = self.optuna.get_trials(deepcopy=False)
            for trial in existing:
                if trial.state == optuna.trial.TrialState.RUNNING and self.lock_trial(trial.number):
                    study_id = self._storage.get_study_id_from_name(self.optuna.study_name)
                    trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
                    return optuna.Trial(self.optuna, trial_id)  # type: ignore[no-any-return]
            if len(existing) >= trials:
                return None
            # A sampler per trial, so that a resumed search draws the same options as one that was not stopped, and two
            # processes draw different ones.
            self.optuna.sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + len(existing)) % (1 << 32))
            new_trial = self.optuna.ask(distributions)
            self.lock_trial(new_trial.number)
            return new_trial


class SharedStudy(Study):
    """A study in PostgreSQL; the server locks its trials for the session of a connection."""

    def __init__(self, url: str, name: str, where: str) -> None:
        import psycopg

        optuna = import_optuna()
        self._key = zlib.crc32(name.encode()) - (1 << 31)  # a signed 32-bit number
        self._connection: Any = psycopg.connect(
            url, autocommit=True, connect_timeout=10, options=SESSION_OPTIONS, **KEEP_ALIVE
        )
        with self.locked():  # two processes must not create the same tables
            address = url.replace(SCHEME, f"{DRIVER}://", 1)
            self._database = optuna.storages.RDBStorage(address, engine_kwargs={"pool_pre_ping": True})
            super().__init__(self._database, name, where)

    @contextmanager
    def locked(self) -> Iterator[None]:
        self._connection.execute("SELECT pg_advisory_lock(%s)", (CHOICE_LOCK,))
        try:
            yield
        finally:
            self._connection.execute("SELECT pg_advisory_unlock(%s)", (CHOICE_LOCK,))

    def lock_trial(self, number: int) -> bool:
        query = "SELECT pg_try_advisory_lock(%s, %s)"
        return bool(self._connection.execute(query, (self._key, number)).fetchone()[0])

    def next_trial(self, trials: int, distributions: dict[str, Any], seed: int) -> "optuna.Trial | None":
        trial = super().next_trial(trials, distributions, seed)
        if trial is not None:
            trial.set_user_attr(MACHINE, platform.node())
        return trial

    def close(self) -> None:
        """Close the connections, which releases all locks."""
        self._connection.close()
        self._database.remove_session()
        self._database.engine.dispose()


@contextmanager
def open_study(folder: Path, url: str | None) -> Iterator[Study]:
    """Open or create the study in a folder, or the study with the name of the folder in the PostgreSQL at `url`.

    Raises:
        UserError: The folder is locked by another process or cannot be written, the study cannot be read, or the server
            does not answer.
    """
    if url is None:
        with lock.training_lock(folder):
            yield _open_journal(folder)
        return
    if not url.startswith(SCHEME):
        raise UserError(f"storage: expected {SCHEME}USER@HOST/DATABASE, got {url.partition('://')[0]!r:.60}")
    optuna, psycopg = import_optuna(), import_extra("psycopg", "a study in PostgreSQL", "tune")
    from sqlalchemy import exc, make_url

    name = folder.resolve().name
    files.create_folder(folder)
    try:
        where = f"study {name} in {make_url(url).render_as_string(hide_password=True)}"
        with closing(SharedStudy(url, name, where)) as study:
            yield study
    except (psycopg.Error, exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{url.rpartition('@')[2]}: {reason}; repeat the command to continue the search") from None


def _open_journal(folder: Path) -> Study:
    optuna, path = import_optuna(), folder / JOURNAL
    if path.exists():
        input_files.check(path)
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        return Study(optuna.storages.JournalStorage(backend), NAME, str(folder))
    except (OSError, ValueError) as error:
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{path}: the study cannot be opened ({reason})") from None
