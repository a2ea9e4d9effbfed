"""Watches for a new model in the run folder, for new keys, and for expired texts while the server runs.

The watcher opens a new model and tries it out while the service still uses the old one; then the service uses the new
one. If the new model is damaged or incomplete, the service keeps the old one, and the watcher opens the new one again
when its files change.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from factorcell.errors import UserError
from factorcell.io import digests
from factorcell.service import error_log
from factorcell.service.http.site import Site
from factorcell.service.learning import ServedModel
from factorcell.service.record import StoreError

LOG = logging.getLogger("factorcell.service")
CHECK_INTERVAL = 1.0  # seconds between two checks
EXPIRY_INTERVAL = 600.0  # seconds between two deletions of expired texts

# For each file: the modification time in nanoseconds, the inode and the size, or None if the file does not exist.
Stamp = tuple[tuple[int, int, int] | None, ...]


def folder_stamp(folder: Path) -> Stamp:
    """Return a value that changes if the run in a folder changes or another folder replaces the folder."""
    return _stamp(folder / digests.FILE, folder / "weights.safetensors")  # the manifest digests.json is optional


def _stamp(*paths: Path) -> Stamp:
    file_stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            file_stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        except OSError:
            file_stamps.append(None)
    return tuple(file_stamps)


class Watcher:
    """Watches the run, the keys and the expiry of texts for a site.

    Args:
        site: The site that serves.
        folder: The run folder.
        reopen: Opens the run in the folder, tries it out, and returns its model.
        run_stamp: The `folder_stamp` of the folder, computed before the served run was opened.
    """

    def __init__(self, site: Site, folder: Path, reopen: Callable[[], ServedModel], run_stamp: Stamp) -> None:
        self.site, self.folder, self.reopen = site, folder, reopen
        self.run_stamp, self.keys_stamp = run_stamp, self._current_keys_stamp()
        self.last_expiry = time.monotonic() - EXPIRY_INTERVAL
        self._wake_event, self._must_reload, self._is_closed = threading.Event(), False, False
        self._thread = threading.Thread(target=self._run, name="factorcell-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reload(self) -> None:
        """Open the run again at once, even if the run has not changed. A signal handler may call this."""
        self._must_reload = True
        self._wake_event.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake_event.set()
        if self._thread.is_alive():
            self._thread.join()

    def check_once(self) -> None:
        """Load a changed model, load changed keys, and delete expired texts."""
        self._reload_changed_model()
        self._reload_changed_keys()
        if self.site.service.privacy.retention is not None and time.monotonic() >= self.last_expiry + EXPIRY_INTERVAL:
            self.last_expiry = time.monotonic()
            try:
                self.site.service.expire()
            except StoreError:
                LOG.warning("expired texts could not be deleted: the store does not answer")

    def _reload_changed_model(self) -> None:
        stamp = folder_stamp(self.folder)
        is_forced, self._must_reload = self._must_reload, False
        if stamp == self.run_stamp and not is_forced:
            return
        self.run_stamp = stamp
        try:
            model = self.reopen()
        except (UserError, OSError, ValueError, RuntimeError) as error:
            self.site.metrics.models.labels("refused").inc()
            LOG.warning("the new run is invalid and the previous run is still served: %s", error)
            return
        self.site.service.replace_model(model)
        self.site.metrics.models.labels("served").inc()
        LOG.warning("a new model is served from now on")

    def _reload_changed_keys(self) -> None:
        stamp, keys = self._current_keys_stamp(), self.site.keys
        if keys is None or stamp == self.keys_stamp:
            return
        self.keys_stamp = stamp
        try:
            keys.refresh()
        except (UserError, OSError) as error:
            LOG.warning("the new keys are invalid and the previous keys remain valid: %s", error)

    def _current_keys_stamp(self) -> Stamp:
        return () if self.site.keys is None else _stamp(self.site.keys.path)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self.check_once()
            except Exception as error:  # the watcher must still notice later changes
                error_log.log_unexpected_error(error)
            self._wake_event.wait(CHECK_INTERVAL)
            self._wake_event.clear()
