"""Expiry deletes old texts and the records of inactive users, but not the pause of an active user."""

from collections.abc import Callable

import pytest

from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.record import DamagedRecordError, Record
from tests.service.oracle import learned_by_library, learned_by_service

OpenService = Callable[..., Service]


def test_expired_texts_leave_no_trace(open_service: OpenService, model: ServedModel) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100), clock=lambda: now)
    accepted_texts = [(0, "ann", "ab"), (50, "ann", "cab"), (60, "ann", "b"), (0, "bob", "ab"), (55, "eve", "c")]
    for after, user, text in accepted_texts:
        now = 1_000_000.0 + after
        service.accept(user, text)
    service.pause("zoe")
    assert service.expire() == 0
    now = 1_000_000.0 + 120
    assert service.expire() == 2
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(model, ["cab", "b"])
    assert service.store.users() == ["ann", "eve", "zoe"]
    now += 1000
    assert service.expire() == 3
    assert service.store.users() == []
    assert open_service().expire() == 0


def test_expired_texts_that_are_no_longer_saved_leave_no_trace(open_service: OpenService, model: ServedModel) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100, max_texts=2), clock=lambda: now)
    for after, text in ((0, "ab"), (60, "cab"), (70, "b")):
        now = 1_000_000.0 + after
        service.accept("ann", text)
    assert service.expire() == 0
    assert learned_by_service(service, "ann") != learned_by_library(model, ["cab", "b"])  # "ab" is learned, too
    now = 1_000_000.0 + 120
    assert service.expire() == 1
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(model, ["cab", "b"])
    assert service.expire() == 0


def test_a_text_as_old_as_the_retention_time_is_kept(open_service: OpenService) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100), clock=lambda: now)
    for after, text in ((0, "ab"), (1, "cab")):
        now = 1_000_000.0 + after
        service.accept("ann", text)
    now = 1_000_000.0 + 101
    assert service.expire() == 1
    record = service.store.read("ann")
    assert record is not None
    assert [saved.text for saved in record.texts] == ["cab"]
    assert service.expire() == 0
    now += 1
    assert service.expire() == 1
    assert service.store.users() == []


def test_a_pause_as_old_as_the_retention_time_is_kept(open_service: OpenService) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100), clock=lambda: now)
    service.accept("ann", "ab")
    now += 1
    service.pause("ann")
    now += 100
    assert service.expire() == 1
    record = service.store.read("ann")
    assert record is not None
    assert (record.paused, record.texts) == (True, ())


@pytest.mark.parametrize("retention", [90 * 86_400, 3600])
def test_the_pause_of_an_active_user_does_not_expire(open_service: OpenService, retention: int) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=retention), clock=lambda: now)
    for user in ("ann", "bob", "eve"):
        service.accept(user, "ab")
        service.pause(user)
    for _ in range(90):  # the requests cover three times the retention time
        now += retention / 30
        assert service.accept("ann", "cab").outcome == "paused"
        service.pause("bob")
        service.expire()
    assert service.store.users() == ["ann", "bob"]
    profile = service.show("ann")
    assert profile is not None
    assert (profile.paused, profile.texts) == (True, [])
    now += retention + 1
    service.expire()
    assert service.store.users() == [], "the pause of an inactive user expires"


def test_a_damaged_record_does_not_expire(
    open_service: OpenService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can restore it; the texts of others are deleted."""
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100), clock=lambda: now)
    service.accept("ann", "ab")
    now += 1
    service.accept("bob", "cab")
    monkeypatch.setattr("factorcell.service.engine.PAGE_SIZE", 1)
    read = service.store.read

    def read_damaged(user: str) -> Record | None:
        if user == "ann":
            raise DamagedRecordError("user record: truncated or altered")
        return read(user)

    service.store.read = read_damaged
    now += 1000
    assert service.expire() == 1
    assert service.store.users() == ["ann"]
    assert "the record of a user is damaged and does not expire" in caplog.text


def test_expiry_ends_in_time_and_continues(open_service: OpenService) -> None:
    now = 1_000_000.0
    service = open_service(privacy=Privacy(retention=100), clock=lambda: now)
    for number in range(5):
        service.accept(f"user {number}", "ab")
    now += 1000
    assert service.expire(-1.0) == 0
    assert len(service.store.users()) == 5
    assert service.expire(100.0) == 5
