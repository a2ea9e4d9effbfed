"""What changes while the server runs: a new model at the path of the run, new keys, and texts that grow too old.

A new model is opened beside the one that serves, proven, and takes over from the next request on. One that is damaged
or half written changes nothing, and is tried again when it changes.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from factorcell import digests
from factorcell.config import UserError
from factorcell.service import faults
from factorcell.service.http.site import Site
from factorcell.service.learning import ServedModel
from factorcell.service.record import StoreError

LOG = logging.getLogger("factorcell.service")
EVERY = 1.0  # seconds between two looks
EXPIRING = 600.0  # seconds between two deletions of what is too old
MARKS = (digests.FILE, "weights.safetensors")  # files that change with a run; a folder may have no manifest

Mark = tuple[tuple[int, int, int] | None, ...]


def mark(folder: Path) -> Mark:
    """What tells whether a run has changed, or another folder has come to its place."""
    return _stamps(*(folder / name for name in MARKS))


def _stamps(*paths: Path) -> Mark:
    """What tells whether any of the files has changed."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


class Watcher:
    """Looks after a `site` whose run lies in `folder`; `reopen` opens and proves the run that lies there now.

    `seen`: the `mark` of the folder before the run that is served was opened.
    """

    def __init__(self, site: Site, folder: Path, reopen: Callable[[], ServedModel], seen: Mark) -> None:
        self.site, self.folder, self.reopen = site, folder, reopen
        self.seen, self.seen_keys = seen, self._keys()
        self.expired = time.monotonic() - EXPIRING
        self._wake, self._asked, self._closed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="factorcell-watching", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def reload(self) -> None:
        """Open the run again at once, whether or not it seems changed. A signal may call this."""
        self._asked = True
        self._wake.set()

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once."""
        self.look_at_model()
        self.look_at_keys()
        if self.site.service.privacy.keep is not None and time.monotonic() >= self.expired + EXPIRING:
            self.expired = time.monotonic()
            self._expire()

    def look_at_model(self) -> None:
        """Have a new model take over, if there is one."""
        now, asked, self._asked = mark(self.folder), self._asked, False
        if now == self.seen and not asked:
            return
        self.seen = now
        try:
            model = self.reopen()
        except (UserError, OSError, ValueError, RuntimeError) as error:
            self.site.metrics.models.labels("refused").inc()
            LOG.warning("the run that is there now is not served, the one before still is: %s", error)
            return
        self.site.service.use(model)
        self.site.metrics.models.labels("served").inc()
        LOG.warning("a new model is served from now on")

    def look_at_keys(self) -> None:
        """Take new keys, if there are some."""
        now, keys = self._keys(), self.site.keys
        if keys is None or now == self.seen_keys:
            return
        self.seen_keys = now
        try:
            keys.refresh()
        except (UserError, OSError) as error:
            LOG.warning("the keys that are there now are not taken, those before still hold: %s", error)

    def _keys(self) -> Mark:
        return () if self.site.keys is None else _stamps(self.site.keys.path)

    def _expire(self) -> None:
        try:
            self.site.service.expire()
        except StoreError:
            LOG.warning("what is too old could not be deleted: the store does not answer")

    def _run(self) -> None:
        while not self._closed:
            try:
                self.look()
            except Exception as error:  # new models and keys are to be noticed all the same
                faults.log(error)
            self._wake.wait(EVERY)
            self._wake.clear()
