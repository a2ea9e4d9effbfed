"""Served models: their identity, and the contexts that they accept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factorcell.completion.blend import DEFAULT_WEIGHTS, save_settings
from factorcell.completion.online import LearningRule, User, learn_one
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.messages import CompletionRequest
from factorcell.service.record import Record
from tests.service import runs
from tests.service.oracle import learned_by_library, learned_by_service
from tests.small_runs import make_letters


def test_identity_depends_on_the_learning_rule(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "run")
    identities = [ServedModel(run).identity]
    for rule in (
        LearningRule(),
        LearningRule(rate=0.2),
        LearningRule(max_norm=0),
        LearningRule(max_norm=1.5),
    ):
        save_settings(run, rule, DEFAULT_WEIGHTS)
        identities.append(ServedModel(Run.open(run.folder)).identity)
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


def test_suggested_text_of_a_lower_case_run_can_be_forgotten(
    open_service: Callable[..., Service], tmp_path: Path
) -> None:
    model = ServedModel(runs.make_run(tmp_path / "run", lowercase=True))
    service = open_service(model)
    for text in ("CAB A", "Cab  a", "acc"):
        service.accept("bob", text)
    suggested = [r.text for r in service.complete(CompletionRequest("ca", "bob")).results if "history" in r.source]
    assert suggested == ["cab a"]
    assert service.forget("bob", suggested[0]) == 2
    assert service.forget("bob", "ACC") == 1
    assert service.wait_for_learning()
    assert learned_by_service(service, "bob") == learned_by_library(model, [])


def test_user_column_is_refused_as_context(service: Service) -> None:
    message = "context who: the model reads this column as the user; set `user` instead"
    for user in (None, "ann"):
        with pytest.raises(UserError, match=message):
            service.complete(CompletionRequest("a", user=user, context={"who": "ann"}))
    with pytest.raises(UserError, match=message):
        service.accept("ann", "abba", context={"who": "bob"})
    assert service.show("ann") is None


def test_the_message_about_an_unknown_context_column_does_not_offer_the_user_column(service: Service) -> None:
    message = "^unknown context column 'whom'; choose from city$"
    with pytest.raises(UserError, match=message):
        service.complete(CompletionRequest("a", context={"whom": "ann"}))
    with pytest.raises(UserError, match=message):
        service.accept("ann", "abba", context={"whom": "bob"})


def test_model_without_users_does_not_block_a_later_model(
    open_service: Callable[..., Service], models: tuple[ServedModel, ServedModel], tmp_path: Path
) -> None:
    letters = make_letters(spread=0.8)
    run = Run.create(tmp_path / "run", letters.config, letters.tokenizer, letters.schema)
    run.save_weights({})
    service = open_service(models[0])
    service.accept("ann", "abba")
    service.replace_model(ServedModel(Run.open(run.folder)))
    assert service.complete(CompletionRequest("ab", "ann")).results
    with pytest.raises(UserError, match="does not distinguish users"):
        service.accept("ann", "abc")
    assert service.relearn("ann")
    service.replace_model(models[1])
    service.complete(CompletionRequest("ab", "ann"))
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(models[1], ["abba"])


def test_boolean_and_number_are_different_contexts(
    service: Service, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    cities: list[Any] = []

    def begin(record: Record | None, context: Any, unknown: str) -> Any:
        cities.append(context["city"])
        return ServedModel.begin(model, record, context, unknown)

    monkeypatch.setattr(model, "begin", begin)
    for value in (1, True, 0, False, 1, True, 0, False):
        service.complete(CompletionRequest("a", context={"city": value}, unknown="group"))
    assert [(value, type(value)) for value in cities] == [(1, int), (True, bool), (0, int), (False, bool)]


def texts_and_scores(suggestions: Any) -> list[tuple[str, float]]:
    return [(item.text, item.score if hasattr(item, "score") else item.log_probability) for item in suggestions]


def test_the_service_reads_the_earlier_texts_of_a_user_as_the_library_does(
    open_service: Callable[..., Service], tmp_path: Path
) -> None:
    run = runs.make_run(tmp_path / "run", prompt_history=2)
    model = ServedModel(run)
    service, texts = open_service(model), ["abba", "cab", "bac", "abc"]
    for count, text in enumerate(texts, 1):
        service.accept("ann", text, context={"city": "Oslo"})
        user = User.new(run)
        for learned_text in texts[:count]:
            user = learn_one(run, user, learned_text, {"city": "Oslo"})
        assert learned_by_service(service, "ann") == user.to_bytes()
        context = {"city": "Nice"}
        actual = service.complete(CompletionRequest("a", "ann", context=context)).results
        assert texts_and_scores(actual) == texts_and_scores(model.completer.complete("a", user, context))
        anonymous = service.complete(CompletionRequest("a", "ann", context=context, learn=False)).results
        expected = model.completer.complete("a", User.new(run), context)
        assert texts_and_scores(anonymous) == texts_and_scores(expected)
    service.forget("ann", "bac")
    assert service.wait_for_learning()
    assert learned_by_service(service, "ann") == learned_by_library(
        model, [(t, {"city": "Oslo"}) for t in texts[:2] + texts[3:]]
    )


def test_no_copy_of_a_text_stays_in_the_context_of_another(
    open_service: Callable[..., Service], tmp_path: Path
) -> None:
    service = open_service(ServedModel(runs.make_run(tmp_path / "run", prompt_history=2)))
    service.accept("ann", "abba", context={"city": "Oslo"})
    service.accept("ann", "cab", context={"city": "Nice", "previous_texts": "abba"})
    service.forget("ann", "abba")
    profile = service.show("ann")
    assert profile is not None
    assert [(text.text, text.context) for text in profile.texts] == [("cab", {"city": "Nice"})]
    exported = {"format": 1, "user": "bob", "paused": False}
    texts = [{"text": "cab", "time": 0, "context": {"city": "Nice", "previous_texts": "abba"}}]
    service.restore({**exported, "texts": texts})
    restored = service.show("bob")
    assert restored is not None
    assert [text.context for text in restored.texts] == [{"city": "Nice"}]
