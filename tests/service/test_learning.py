"""What a served model is known by."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factorcell.completion.online import LearningRule
from factorcell.config import UserError
from factorcell.model.run import Run
from factorcell.service.engine import CompletionRequest, Service
from factorcell.service.learning import ServedModel
from factorcell.service.record import Record
from tests.service import runs
from tests.service.oracle import learned_by_library, learned_by_service
from tests.small_runs import make_letters


def test_who_learns_otherwise_is_another_model(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "run")
    found = [ServedModel(run).identity]
    for rule in (LearningRule(), LearningRule(rate=0.2), LearningRule(reach=0), LearningRule(reach=1.5)):
        rule.save(run)
        found.append(ServedModel(Run.open(run.folder)).identity)
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_context_does_not_say_who_types(service: Service) -> None:
    said = "context who: in this model it is who types; valid is to say `user` alone"
    for user in (None, "ann"):
        with pytest.raises(UserError, match=said):
            service.complete(CompletionRequest("a", user=user, context={"who": "ann"}))
    with pytest.raises(UserError, match=said):
        service.accept("ann", "abba", context={"who": "bob"})
    assert service.show("ann") is None


def test_a_model_that_learns_nobody_holds_up_no_other(
    opened: Callable[..., Service], models: tuple[ServedModel, ServedModel], tmp_path: Path
) -> None:
    made = make_letters(spread=0.8)
    nobodys = Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema)
    nobodys.save_weights({})
    service = opened(models[0])
    service.accept("ann", "abba")
    service.replace_model(ServedModel(Run.open(nobodys.folder)))
    assert service.complete(CompletionRequest("ab", "ann")).results
    with pytest.raises(UserError, match="does not tell people apart"):
        service.accept("ann", "abc")
    assert service.relearn("ann")
    service.replace_model(models[1])
    service.complete(CompletionRequest("ab", "ann"))
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(models[1], ["abba"])


def test_boolean_and_number_are_different_contexts(
    service: Service, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def begin(record: Record | None, context: Any) -> Any:
        begun.append(context["city"])
        return ServedModel.begin(model, record, context)

    monkeypatch.setattr(model, "begin", begin)
    for value in (1, True, 0, False, 1, True, 0, False):
        service.complete(CompletionRequest("a", context={"city": value}))
    assert [(value, type(value)) for value in begun] == [(1, int), (True, bool), (0, int), (False, bool)]
