"""A device gives the suggestions and learns the vector of Python: compiled code, WebAssembly in Node and browsers."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from factorcell.completion.completer import public_filter
from factorcell.completion.device import export_to_device
from factorcell.completion.online import Learner, LearningRule
from factorcell.data.text_folds import same_prefix, same_text
from factorcell.errors import UserError
from factorcell.nn.kernels import library
from factorcell.runs.run import Run
from factorcell.service.privacy import BlockList
from tests.kernels import VARIANTS, compiled
from tests.small_runs import as_any, make_letters
from tests.web.device_runs import USERS, Answers, Session, assert_same, export, python_answers, save_run
from tests.web.native_device import NativeDevice, read_weights
from tests.web.tabs import DeviceError, Play

WHOLE_SEARCH = {"deadline": 1e9}
RULES = {"adagrad": LearningRule("adagrad", 0.3), "adadelta": LearningRule("adadelta", 5.0)}


def native_answers(run: Run, folder: Path, session: Session, variant: int) -> Answers:
    tokenizer, is_public = run.tokenizer, public_filter(None)
    specials = tokenizer.specials
    prefix = ""

    def accept(completion: str) -> str | None:
        text = same_text(completion)
        is_canonical = tokenizer.normalize(completion) == completion
        is_longer = text not in ("", prefix) and text.startswith(prefix)
        return text if is_canonical and is_longer and is_public(text) else None

    device, suggestions = NativeDevice(folder, accept, variant), list[list[tuple[str, float]]]()
    for prefixes, text in itertools.zip_longest(session.prefixes, session.accepted):
        for typed in prefixes or []:
            prefix = tokenizer.normalize(same_prefix(typed))
            entries = device.complete(tokenizer.encode(list(prefix)), prefix, 10)
            suggestions.append([(suggested, log_prob) for suggested, log_prob, _ in entries])
        if text is not None:
            ids = tokenizer.encode(tokenizer.split(text))
            device.learn([specials.start, *ids, specials.end], tokenizer.normalize(text))
    answers = Answers(suggestions, device.vector.copy())
    device.close()
    return answers


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_compiled_completer_equals_python(rule: LearningRule, variant: str, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", rule), precision="float32")
    session, folder = Session.make(), export(tmp_path / "device", run)
    answers = native_answers(run, folder, session, library.VARIANTS.index(variant))
    assert_same(answers, python_answers(run, session))


@compiled
def test_a_user_of_another_rule_is_learned_again(tmp_path: Path) -> None:
    """The files name what has learned a user: the weights, the fixed context and the rule."""
    names = set()
    for number, rule in enumerate((RULES["adagrad"], RULES["adadelta"], replace(RULES["adagrad"], rate=0.01))):
        run = Run.open(save_run(tmp_path / f"run {number}", rule), precision="float32")
        names.add(json.loads((export(tmp_path / f"device {number}", run) / "model.json").read_text())["run"])
    assert len(names) == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported run."""
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"]), precision="float32")
    return export(tmp_path / "device", run)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("model", [{}, {"layer_norm": True, "lowercase": True}], ids=str)
def test_web_assembly_equals_python(model: dict[str, Any], play: Play, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"], **model), precision="float32")
    session, folder = Session.make(), export(tmp_path / "device", run)
    calls: list[list[Any]] = []
    for prefixes, text in itertools.zip_longest(session.prefixes, session.accepted):
        calls += [["complete", prefix, WHOLE_SEARCH] for prefix in prefixes or []]
        calls += [] if text is None else [["accept", text]]
    *results, vector = play(folder, [*calls, ["vector"]])
    completions = [result for (method, *_), result in zip(calls, results, strict=True) if method == "complete"]
    suggestions = [[(entry["text"], entry["logProbability"]) for entry in result] for result in completions]
    assert_same(Answers(suggestions, np.array(vector, np.float32)), python_answers(run, session))


@pytest.mark.slow
@compiled
def test_a_device_obeys_the_privacy_rules(play: Play, folder: Path) -> None:
    script = [
        ["vector"],
        ["accept", "my password is hunter2"],
        ["vector"],
        ["accept", "bread"],
        ["accept", "How to bake"],
        ["accept", "  banana\tboat "],
        ["vector"],
        ["export", "ann"],
        ["forget", "how TO bake"],
        ["vector"],
        ["delete"],
        ["accept", "bread"],
        ["accept", "banana boat"],
        ["vector"],
        ["pause"],
        ["accept", "cake"],
        ["delete"],
        ["export", "ann"],
        ["vector"],
    ]
    results = play(folder, script)
    new, withheld, unchanged, _, _, _, learned, exported, forgotten, remaining = results[:10]
    *_, again, _, paused, _, empty, reset = results
    assert withheld == {"outcome": "withheld", "why": "a password"}
    assert unchanged == new == reset
    assert learned != new
    assert [row["text"] for row in exported["texts"]] == ["bread", "How to bake", "banana boat"]
    assert (exported["format"], exported["user"], exported["paused"]) == (1, "ann", False)
    assert forgotten == 1
    assert remaining == again, "a forgotten text leaves no trace"
    assert paused == {"outcome": "paused"}
    assert empty["texts"] == []


@pytest.mark.slow
@compiled
def test_two_tabs_have_the_same_user(play: Play, folder: Path) -> None:
    texts = ["bread", "banana boat", "cake"]
    *_, expected = play(folder, [*(["accept", text] for text in texts), ["vector"]])
    methods = ["accept", "other accept", "accept"]
    script = [list(call) for call in zip(methods, texts, strict=True)]
    script += [["vector"], ["other complete", "cak"], ["other delete"], ["complete", "cak"], ["forget", "cake"]]
    script += [["export"]]
    *_, vector, learned, _, deleted, forgotten, exported = play(folder, script)
    assert vector == expected
    assert "history" in next(row["sources"] for row in learned if row["text"] == "cake")
    assert not [row for row in deleted if "history" in row["sources"]]
    assert forgotten == 0
    assert exported["texts"] == []


@pytest.mark.slow
@compiled
def test_a_user_moves_to_another_device(play: Play, folder: Path) -> None:
    script = [["accept", "bread"], ["accept", "cake"], ["vector"], ["export", "ann"]]
    *_, vector, exported = play(folder, script)
    exported["texts"].append({"text": "my password is hunter2", "time": 0})
    *_, moved, again = play(folder, [["import", exported], ["vector"], ["export", "ann"]])
    assert moved == vector
    assert [row["text"] for row in again["texts"]] == ["bread", "cake"]
    for seconds in (1_767_225_600_000, -1, "2026-01-01", None):
        exported["texts"][0]["time"] = seconds
        with pytest.raises(DeviceError, match="expected the time of a text in Unix seconds, from 1970 to 9999"):
            play(folder, [["import", exported]])


@pytest.mark.slow
@compiled
def test_an_altered_file_is_refused(play: Play, folder: Path) -> None:
    content = bytearray((folder / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "weights.safetensors").write_bytes(content)
    with pytest.raises(DeviceError, match=r"weights.safetensors: expected the SHA-256"):
        play(folder, [])


@pytest.mark.slow
@compiled
def test_texts_beyond_the_retention_are_deleted(play: Play, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"]), precision="float32")
    folder, now = export(tmp_path / "device", run), int(time.time())
    texts = [{"text": "cake", "time": now - 7200}, {"text": "bread", "time": now}]
    user = {"format": 1, "user": "ann", "paused": False, "texts": texts}
    script: list[Any] = [["import", user], ["export"], ["reopen", {"retention": 3600}], ["vector"], ["export"]]
    script += [["import", user], ["export"], ["delete"], ["import", {**user, "texts": texts[1:]}], ["vector"]]
    _, before, _, vector, after, _, again, _, _, expected = play(folder, script)
    assert [row["text"] for row in before["texts"]] == ["cake", "bread"]
    assert [[row["text"] for row in exported["texts"]] for exported in (after, again)] == [["bread"], ["bread"]]
    assert vector == expected, "an expired text leaves no trace"


@pytest.mark.slow
@compiled
def test_blocked_phrases_are_never_suggested(play: Play, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"]), precision="float32")
    free, blocked = tmp_path / "free", tmp_path / "blocked"
    export_to_device(run, free)
    block_list = BlockList(["banana", "bread"])
    export_to_device(run, blocked, blocked=block_list.phrases, is_allowed=block_list)
    script: list[list[Any]] = [["accept", "banana boat"], *(["complete", prefix] for prefix in ("b", "ban", "bread"))]
    texts = {name: [row["text"] for rows in play(name, script)[1:] for row in rows] for name in (free, blocked)}
    assert "banana boat" in texts[free]
    assert texts[blocked]
    assert not [text for text in texts[blocked] if {"banana", "bread"} & {*text.split()}]


@pytest.mark.slow
@compiled
def test_the_newest_text_is_undone(play: Play, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"]), precision="float32")
    folder = export(tmp_path / "device", run)
    script = [["accept", "bread"], ["vector"], ["accept", "bread"], ["undo"], ["vector"], ["undo"], ["undo"]]
    _, expected, _, removed, vector, *counts, exported = play(folder, [*script, ["export"]])
    assert (removed, counts, exported["texts"]) == (1, [1, 0], [])
    assert vector == expected


@compiled
def test_matrices_are_rounded_to_the_nearest_integers(tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", RULES["adagrad"]), precision="float32")
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    export_to_device(run, tmp_path / "device")
    exact, stored = as_any(Learner(run).user_model).arrays, load_file(tmp_path / "device" / "weights.safetensors")
    matrices = [name for name, array in exact.items() if array.dim() > 1]
    assert len(matrices) > 4
    for name, weights in read_weights(tmp_path / "device").items():
        if name not in matrices:
            continue
        rows = exact[name].flatten(1).numpy()
        assert stored[name].dtype == np.int8
        errors = np.abs(weights.reshape(rows.shape) - rows).max(1)
        assert (errors < 0.501 / 127 * np.abs(rows).max(1)).all()
        assert (np.abs(stored[name].reshape(rows.shape)).max(1) == 127).all()


@compiled
@pytest.mark.parametrize(
    ("model", "message"),
    [({"cell": "gru"}, "expected a recurrent model"), ({"tokenizer": "grapheme"}, "expected the tokenizer char")],
)
def test_runs_that_a_device_cannot_run_are_refused(model: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_to_device(make_letters(data=USERS, **model), tmp_path / "device")


@pytest.mark.slow
@compiled
def test_a_forgotten_text_that_was_dropped_leaves_no_trace(play: Play, folder: Path) -> None:
    script: list[Any] = [["accept", "cake"], ["vector"], ["delete"], ["reopen", {"maxTexts": 1}]]
    script += [["accept", "bread"], ["accept", "cake"], ["export"], ["forget", "bread"], ["vector"]]
    _, expected, *_, exported, forgotten, vector = play(folder, script)
    assert [row["text"] for row in exported["texts"]] == ["cake"]
    assert forgotten == 0
    assert vector == expected


@pytest.mark.slow
@compiled
def test_an_invalid_number_of_suggestions_is_refused(play: Play, folder: Path) -> None:
    with pytest.raises(DeviceError, match="count: expected a whole number of at least 1, got -1"):
        play(folder, [["complete", "b", {"count": -1}]])
