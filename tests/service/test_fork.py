"""A service in a process that is forked: one of its own works, and that of the parent says why it does not."""

import signal
from pathlib import Path

import pytest

from factorcell.config import UserError
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.stores.opening import open_store
from tests import processes

pytestmark = processes.requires_fork
SECONDS = 60


def test_service_of_the_parent(service: Service) -> None:
    service.accept("ann", "abba")

    def child() -> None:
        signal.alarm(SECONDS)
        for ask in (
            lambda: service.complete(CompletionRequest("a", user="ann")),
            lambda: service.accept("ann", "cab"),
            lambda: service.forget("ann", "abba"),
            lambda: service.delete("ann"),
            lambda: service.pause("ann"),
            lambda: service.show("ann"),
            lambda: service.export("ann"),
            lambda: service.expire(),
            lambda: service.relearn("ann"),
            lambda: service.check(),
        ):
            with pytest.raises(UserError, match="store: expected the process that opened it, got a process that was"):
                ask()
        service.close()

    service.privacy = Privacy(retention=1_000_000)
    assert processes.wait_for_exit(processes.start_process(child)) == 0
    assert service.accept("ann", "cab").number == 2
    assert service.complete(CompletionRequest("a", user="ann")).degraded is None


def test_service_of_the_child(service: Service, model: ServedModel, tmp_path: Path) -> None:
    service.accept("ann", "abba")

    def child() -> None:
        signal.alarm(SECONDS)
        own = Service(model, open_store(f"sqlite:///{tmp_path / 'users.db'}"))
        assert own.complete(CompletionRequest("a", user="ann")).degraded is None
        assert own.accept("ann", "cab").outcome == "learned"
        assert own.undo("ann") == 1
        assert own.wait_for_learning(SECONDS)
        own.close()

    assert processes.wait_for_exit(processes.start_process(child)) == 0
    kept = service.show("ann")
    assert kept is not None
    assert [one.text for one in kept.texts] == ["abba"]
