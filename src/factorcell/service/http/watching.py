"""What changes while the server runs: a new model in the run folder, new keys, and texts that grow too old.

A new model is opened next to the one that serves, tested, and serves from the next request on. A damaged or half
written one changes nothing, and is tried again when it changes.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from factorcell import digests
from factorcell.config import UserError
from factorcell.service import error_log
from factorcell.service.http.site import Site
from factorcell.service.learning import ServedModel
from factorcell.service.record import StoreError

LOG = logging.getLogger("factorcell.service")
EVERY = 1.0  # seconds between two looks
EXPIRING = 600.0  # seconds between two deletions of old texts

Mark = tuple[tuple[int, int, int] | None, ...]


def folder_stamp(folder: Path) -> Mark:
    """Return what changes with the run in a folder, or if another folder takes its place."""
    return _stamps(folder / digests.FILE, folder / "weights.safetensors")  # a folder may have no manifest


def _stamps(*paths: Path) -> Mark:
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


class Watcher:
    """Watches for a `site` the run in `folder`, which `reopen` opens and tests.

    `seen`: the `mark` of the folder before the run that is served was opened.
    """

    def __init__(self, site: Site, folder: Path, reopen: Callable[[], ServedModel], seen: Mark) -> None:
        self.site, self.folder, self.reopen = site, folder, reopen
        self.seen, self.seen_keys = seen, self._stamp_of_keys()
        self.expired = time.monotonic() - EXPIRING
        self._wake, self._reload, self._closed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="factorcell-watching", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reload(self) -> None:
        """Open the run again at once, even if it has not changed. A signal handler may call this."""
        self._reload = True
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once at the model, the keys, and the clock."""
        self._look_at_model()
        self._look_at_keys()
        if self.site.service.privacy.retention is not None and time.monotonic() >= self.expired + EXPIRING:
            self.expired = time.monotonic()
            try:
                self.site.service.expire()
            except StoreError:
                LOG.warning("what is too old could not be deleted: the store does not answer")

    def _look_at_model(self) -> None:
        now, reload, self._reload = folder_stamp(self.folder), self._reload, False
        if now == self.seen and not reload:
            return
        self.seen = now
        try:
            model = self.reopen()
        except (UserError, OSError, ValueError, RuntimeError) as error:
            self.site.metrics.models.labels("refused").inc()
            LOG.warning("the run that is there now is not served, the one before still is: %s", error)
            return
        self.site.service.replace_model(model)
        self.site.metrics.models.labels("served").inc()
        LOG.warning("a new model is served from now on")

    def _look_at_keys(self) -> None:
        now, keys = self._stamp_of_keys(), self.site.keys
        if keys is None or now == self.seen_keys:
            return
        self.seen_keys = now
        try:
            keys.refresh()
        except (UserError, OSError) as error:
            LOG.warning("the keys that are there now are not taken, those before still hold: %s", error)

    def _stamp_of_keys(self) -> Mark:
        return () if self.site.keys is None else _stamps(self.site.keys.path)

    def _run(self) -> None:
        while not self._closed:
            try:
                self.look()
            except Exception as error:  # new models and keys are noticed all the same
                error_log.log_unexpected_error(error)
            self._wake.wait(EVERY)
            self._wake.clear()
