"""Compare the systems with their sources, and find them in folders."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User, learn_one
from factorcell.completion.popularity import History, Popularity
from factorcell.completion.replay.systems import (
    MostPopular,
    Personalised,
    Unpersonalised,
    UserHistory,
    available_systems,
    find_config_and_columns,
    open_systems,
    user_and_time_columns,
)
from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from tests.small_runs import make_letters, with_ngrams

ROW = {"text": "abcab", "user": "ann", "city": "Nice", "time": 1}
OTHERS = {name: value for name, value in ROW.items() if name != "text"}


def save(folder: Path, **options: Any) -> Path:
    """Save a model of characters with random weights and the context city, and return its folder."""
    source_run = make_letters(spread=0.8, seed=3, **options)
    run = Run.create(folder, source_run.config, source_run.tokenizer, source_run.schema)
    run.model.load_state_dict(source_run.model.state_dict())
    run.save_weights({})
    return folder


def test_plain_uses_the_context_but_not_the_user() -> None:
    run = make_letters(spread=0.8, seed=3)
    completer = Completer(run)
    of_users, of_cities = Unpersonalised(completer, "user"), Unpersonalised(completer, "city")
    assert of_users.suggest(None, "ab", OTHERS, 5) == completer.complete("ab", context={"city": "Nice"}, k=5)
    assert of_cities.suggest(None, "ab", OTHERS, 5) == completer.complete("ab", k=5)
    (scored,) = run.score_rows(ROW)
    assert of_users.nats(None, ROW) == pytest.approx((scored["nats"], scored["targets"]))
    missing = run.prepare([{"text": "abcab"}], optional=("city",))
    nats, targets = of_cities.nats(None, ROW)
    assert nats == pytest.approx(float(run.nats(missing).sum()))
    assert targets == 6
    assert nats != pytest.approx(scored["nats"], abs=1e-3)


def test_plain_does_not_complete_prefixes_that_are_too_long() -> None:
    plain = Unpersonalised(Completer(make_letters()), "user")
    assert plain.suggest(None, "a" * 12, OTHERS, 3) == []
    assert plain.suggest(None, "a" * 10, OTHERS, 3) != []
    with pytest.raises(UserError, match="Rome"):
        plain.suggest(None, "a", {**OTHERS, "city": "Rome"}, 3)
    tolerant = Unpersonalised(Completer(make_letters(), unknown="expected"), "user")
    assert tolerant.nats(None, {**ROW, "city": "Rome"}) == tolerant.nats(None, {**ROW, "city": None})


def test_users_in_contexts_that_training_never_saw(tmp_path: Path) -> None:
    reads = {"user": "who", "tokenizer": "char", "min_user_count": 1, "max_tokens": 12}
    rows = [{"text": text, "city": city, "who": "ann"} for text in ("abc", "cab") for city in ("Oslo", "Nice")]
    config = Config.of(**{**reads, "context": ["city"], "min_count": 1, "min_context_count": 1})
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    run.save_weights({})
    row = {"text": "abc", "city": "Rome"}
    for system in open_systems(run.folder, ["plain", "online"], user_column="who", unknown="expected").values():
        state = system.start("bob")
        assert system.nats(state, row) == system.nats(state, {**row, "city": None})
        system.learn(state, row)
    with pytest.raises(UserError, match="Rome"):
        open_systems(run.folder, ["online"], user_column="who")["online"].nats(state, row)


def test_mpc_has_no_state_and_history_has_the_texts_of_the_user() -> None:
    popular = Popularity.fit(["abc", "abc", "abd", "b"], min_count=1)
    mpc, history = MostPopular(popular), UserHistory("text")
    assert mpc.suggest(None, "ab", OTHERS, 10) == popular.complete("ab")
    state = history.start("ann")
    later = history.learn(state, ROW)
    assert state == History()
    assert history.suggest(state, "ab", OTHERS, 10) == []
    assert history.suggest(later, "ab", OTHERS, 10) == History(("abcab",)).complete("ab")


def test_systems_are_opened_by_name(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs" / "factorcell")
    save(tmp_path / "runs" / "unadapted", adapt=[])
    TextCounts.of(["abc"], 1).save(folder / POPULARITY)
    alone = open_systems(folder, ["history", "plain", "mpc"])
    assert [type(system) for system in alone.values()] == [UserHistory, Unpersonalised, MostPopular]
    both = open_systems(tmp_path / "runs", ["unadapted", "factorcell"], seconds=1.5)
    assert list(both) == ["unadapted", "factorcell"]
    plain = both["unadapted"]
    assert isinstance(plain, Unpersonalised)
    assert plain.completer.run.folder == tmp_path / "runs" / "unadapted"
    assert plain.completer.seconds == 1.5
    config, columns = find_config_and_columns(tmp_path / "runs", ["mpc", "unadapted"], "user")
    assert (config.data.text, columns) == ("text", ["city"])
    assert find_config_and_columns(tmp_path / "runs", ["unadapted"], "city")[1] == []
    assert find_config_and_columns(tmp_path / "runs", ["mpc"], "user") == (Run.open(folder).config, [])


def test_missing_systems_are_reported(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs" / "one")
    with pytest.raises(
        UserError,
        match=r"unknown system 'plane' .did you mean 'plain'\?.; choose from mpc, history, blend, plain",
    ):
        open_systems(folder, ["plane"])
    with pytest.raises(UserError, match="choose from mpc, history, blend, one"):
        open_systems(tmp_path / "runs", ["plain"])
    with pytest.raises(UserError, match=r"one: no popularity.jsonl; training writes it"):
        open_systems(folder, ["mpc"])
    with pytest.raises(UserError, match="the run does not distinguish users; train it with --user COLUMN"):
        open_systems(folder, ["plain", "online"])
    with pytest.raises(UserError, match="expected a run folder or a folder of runs"):
        open_systems(tmp_path, ["mpc"])
    for system in ("online", "blend"):
        message = (
            f"one: the run does not distinguish users; train it with --user COLUMN, or leave out the system {system}"
        )
        with pytest.raises(UserError, match=message):
            user_and_time_columns(folder, ["plain", system])
    save(tmp_path / "several" / "one")
    save(tmp_path / "several" / "online")
    for path, items in (("several", ["one", "online"]), ("runs", ["one", f"online={folder}"])):
        with pytest.raises(UserError, match="or leave out the system online"):
            open_systems(tmp_path / path, items)
    other = save(tmp_path / "runs" / "two")
    config = files.read_json(other / "config.json")
    config["tokenizer"]["lowercase"] = True
    files.write_json(other / "config.json", config)
    with pytest.raises(UserError, match="the runs one and two have different text columns or lower-casing"):
        find_config_and_columns(tmp_path / "runs", ["one", "two"], "user")
    assert find_config_and_columns(tmp_path / "runs", ["two"], "user")[0].tokenizer.lowercase


def test_users_are_learned_and_blended(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs" / "factor", data={"user": "city", "context": (), "min_user_count": 1})
    save(tmp_path / "runs" / "unadapted", adapt=[], output_bias=[])
    TextCounts.of(["abc"] * 3, 1).save(folder / POPULARITY)
    systems = open_systems(folder, ["plain", "online", "blend"], user_column="city")
    run, row = Run.open(folder), {"text": "cabcab", "city": "Rome"}
    user = learn_one(run, User.new(run), "cabcab")
    for name, system in systems.items():
        assert isinstance(system, Personalised)
        state = system.start("Rome")
        if name == "blend":
            assert system.nats(state, row) is None
        else:
            expected_nats = float(Learner(run).nats(state.vector[None], ["cabcab"])[0])
            assert system.nats(state, row) == pytest.approx((expected_nats, 7))
        later = system.learn(state, row)
        assert (later.to_bytes() == user.to_bytes()) == (name != "plain")
        assert system.suggest(later, "c" * 50, row, 3) == []
        expected = Blend(Completer(run), Popularity.from_run(run)).complete("ca", later, k=3)
        alone = Completer(run).complete("ca", later, k=3)
        assert system.suggest(later, "ca", row, 3) == (expected if name == "blend" else alone)
    several = open_systems(tmp_path / "runs", ["mpc", "unadapted", "factor", "blend"], user_column="city")
    blend = several["blend"]
    assert isinstance(blend, Personalised)
    assert blend.learner.run.folder == folder
    assert isinstance(several["unadapted"], Unpersonalised)


def test_nats_of_a_mixture_are_those_of_its_neural_model_for_the_user_mixed_with_the_n_grams() -> None:
    run = with_ngrams(make_letters(data={"user": "city", "context": (), "min_user_count": 1}, spread=0.8))
    assert run.mixture is not None
    system, row = Personalised(run, Completer(run)), {"text": "abacab", "city": "Rome"}
    state = system.learn(system.learn(system.start("Rome"), {"text": "cab"}), {"text": "abac"})
    batch = run.batch(run.read(["abacab"], [{}]), np.array([0]))
    conditioning = run.model.condition(batch.context, {"city": torch.tensor(state.vector[None])})
    tokens, model_state, nats = batch.tokens[0].tolist(), None, 0.0
    for position, (token, target) in enumerate(pairwise(tokens)):
        with torch.no_grad():
            logs, model_state = run.model.step(torch.tensor([token]), conditioning, model_state)
        assert run.mixture.counts is not None
        counted, lengths = run.mixture.counts.of_targets(batch.tokens.numpy(), np.zeros(1, dtype=np.int64))
        neural_weight, ngram_weight = run.mixture.weights[lengths[0, position]]
        nats -= math.log(neural_weight * float(logs[0, target].exp()) + ngram_weight * counted[0][0, position])
    assert system.nats(state, row) == pytest.approx((nats, 7))
    assert nats != pytest.approx(float(Learner(run).nats(system.start("Rome").vector[None], ["abacab"])[0]))


def test_a_run_of_another_folder_is_a_system_by_its_name(tmp_path: Path) -> None:
    folder = save(tmp_path / "factor", data={"user": "city", "context": (), "min_user_count": 1})
    other = save(tmp_path / "elsewhere" / "run", adapt=[], output_bias=[])
    TextCounts.of(["abc"] * 3, 1).save(folder / POPULARITY)
    items = ["online", "plain", f"unadapted={other}", "blend"]
    systems = open_systems(folder, items, user_column="city")
    assert list(systems) == ["online", "plain", "unadapted", "blend"]
    unadapted, blend = systems["unadapted"], systems["blend"]
    assert isinstance(unadapted, Unpersonalised)
    assert isinstance(blend, Personalised)
    assert unadapted.completer.run.folder == other
    assert blend.learner.run.folder == folder
    assert find_config_and_columns(folder, items, "city")[1] == []
    for name in ("plain", "mpc", ""):
        with pytest.raises(UserError, match=f"expected a name that no other system has, got '{name}'"):
            open_systems(folder, [f"{name}={other}"])
    with pytest.raises(UserError, match="expected a run folder"):
        open_systems(folder, [f"unadapted={tmp_path}"])


def test_available_systems_of_a_folder(tmp_path: Path) -> None:
    users: dict[str, Any] = {"user": "city", "context": (), "min_user_count": 1}
    plain, alike = (
        save(tmp_path / "plain"),
        save(tmp_path / "alike", data=users, adapt=["prefix"], output_bias=[]),
    )
    factor = save(tmp_path / "runs" / "factor", data=users)
    assert available_systems(plain) == available_systems(alike) == ["plain", "history"]
    assert available_systems(factor) == ["plain", "history", "online"]
    for folder in (alike, factor):
        TextCounts.of(["abc"] * 3, 1).save(folder / POPULARITY)
    assert available_systems(alike) == ["plain", "mpc", "history"]
    assert available_systems(factor) == ["plain", "mpc", "history", "online", "blend"]
    assert available_systems(tmp_path / "runs") == ["factor", "mpc", "history", "blend"]
    save(tmp_path / "runs" / "unadapted", adapt=[], output_bias=[])
    save(tmp_path / "runs" / ".ipynb_checkpoints")
    assert available_systems(tmp_path / "runs") == ["factor", "mpc", "history", "unadapted"]
    for folder in (plain, alike, factor, tmp_path / "runs"):
        names = available_systems(folder)
        systems_by_name = open_systems(folder, names, user_column="city")
        assert list(systems_by_name) == names
        assert all(isinstance(systems_by_name[name], Personalised) for name in names if name in ("online", "blend"))


def test_a_blend_reads_the_context_of_its_run(tmp_path: Path) -> None:
    config = Config.of(tokenizer="char", user="user", context=("city",), min_user_count=1, min_context_count=1)
    corpus = prepare([{**ROW, "city": city} for city in ("Nice", "Oslo")], config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    run.save_weights({})
    TextCounts.of(["abc"], 1).save(run.folder / POPULARITY)
    assert (
        find_config_and_columns(run.folder, ["blend"], "user")[1]
        == find_config_and_columns(run.folder, ["online"], "user")[1]
        == ["city"]
    )
    (blend,) = open_systems(run.folder, ["blend"]).values()
    assert blend.suggest(blend.start("ann"), "ab", OTHERS, 3)[0].text.startswith("ab")
