"""Learning again while other writers change the record: no deleted text survives in the learned state."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec import structs

from factorcell.service import engine
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.privacy import Privacy
from factorcell.service.record import StoredText
from tests.service.oracle import learned_by_library, learned_by_service

OpenService = Callable[..., Service]


def relearn_after(service: Service, change_record: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the service relearn ann while another writer changes her record once; return how many states it computed."""
    learn, computed_states = ServedModel.learn, []

    def learn_during_change(*arguments: object, **options: object) -> object:
        state = learn(*arguments, **options)  # type: ignore[arg-type]
        computed_states.append(state)
        if len(computed_states) == 1:
            change_record()
        return state

    monkeypatch.setattr(ServedModel, "learn", learn_during_change)
    assert service.relearn("ann")
    return len(computed_states)


def test_texts_of_a_deleted_user_do_not_survive_a_restore(
    open_service: OpenService, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = open_service(), open_service()
    for text in ("ab", "cab"):
        service.accept("ann", text)
    exported = msgspec.to_builtins(service.show("ann"))
    assert exported is not None
    other._relearner.close()
    service.delete("ann")
    other.restore(exported)

    def restore_other_texts() -> None:
        other.delete("ann")
        other.restore({**exported, "texts": [{"text": text, "time": 1} for text in ("ba", "bca")]})

    assert relearn_after(service, restore_other_texts, monkeypatch) == 2
    assert learned_by_service(service, "ann") == learned_by_library(model, ["ba", "bca"])


def test_a_forgotten_text_that_is_no_longer_saved_does_not_survive(
    open_service: OpenService, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = open_service(privacy=Privacy(max_texts=2)), open_service()
    for text in ("ab", "cab", "ba"):  # the model has learned the first text, which is no longer saved
        service.accept("ann", text)
    other._relearner.close()
    record = service.store.read("ann")
    assert record is not None
    texts = (*record.texts, StoredText(4, "cab", record.texts[-1].time))  # as a service with another model saves it
    changed = structs.replace(record, last_number=4, texts=texts, version=record.version + 1)
    assert service.store.write(changed, expected_version=record.version)
    relearn_after(service, lambda: other.forget("ann", "ab"), monkeypatch)
    assert learned_by_service(service, "ann") == learned_by_library(model, ["cab", "ba", "cab"])


def test_many_texts_are_learned_in_parts_that_another_writer_does_not_undo(
    open_service: OpenService, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = open_service(), open_service()
    other._relearner.close()
    for text in ("ab", "cab", "ba", "acc"):
        service.accept("ann", text)
    assert other.forget("ann", "ba") == 1
    monkeypatch.setattr(engine, "MAX_LEARNED_TEXTS", 2)
    part_count = relearn_after(service, lambda: other.accept("ann", "c"), monkeypatch)
    assert part_count == 3, "the interrupted part is learned again"
    assert learned_by_service(service, "ann") == learned_by_library(model, ["ab", "cab", "acc", "c"])
