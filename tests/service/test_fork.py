"""Services in forked processes: one opened in the child works, and one of the parent reports why it does not."""

import signal
from pathlib import Path

import pytest

from factorcell.errors import UserError
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.privacy import Privacy
from factorcell.service.stores.store import open_store
from tests import processes

pytestmark = processes.requires_fork
SECONDS = 60


def test_service_of_the_parent_is_refused_in_the_child(service: Service) -> None:
    service.accept("ann", "abba")

    def child() -> None:
        signal.alarm(SECONDS)
        for call in (
            lambda: service.complete(CompletionRequest("a", user="ann")),
            lambda: service.accept("ann", "cab"),
            lambda: service.forget("ann", "abba"),
            lambda: service.delete("ann"),
            lambda: service.pause("ann"),
            lambda: service.show("ann"),
            lambda: service.expire(),
            lambda: service.relearn("ann"),
            lambda: service.check(),
        ):
            with pytest.raises(UserError, match="store: it was opened in another process, from which this process was"):
                call()
        service.close()

    service.privacy = Privacy(retention=1_000_000)
    assert processes.wait_for_exit(processes.start_process(child)) == 0
    assert service.accept("ann", "cab").number == 2
    assert service.complete(CompletionRequest("a", user="ann")).degraded is None


def test_service_opened_in_the_child_works(service: Service, model: ServedModel, tmp_path: Path) -> None:
    service.accept("ann", "abba")

    def child() -> None:
        signal.alarm(SECONDS)
        child_service = Service(model, open_store(f"sqlite:///{tmp_path / 'users.db'}"))
        assert child_service.complete(CompletionRequest("a", user="ann")).degraded is None
        assert child_service.accept("ann", "cab").outcome == "learned"
        assert child_service.undo("ann") == 1
        assert child_service.wait_for_learning(SECONDS)
        child_service.close()

    assert processes.wait_for_exit(processes.start_process(child)) == 0
    profile = service.show("ann")
    assert profile is not None
    assert [text.text for text in profile.texts] == ["abba"]
