"""The systems against what they are made of, and how they are found in folders."""

from pathlib import Path
from typing import Any

import pytest

from factorcell import files
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
    open_systems,
    reading_config,
)
from factorcell.config import Config, UserError
from factorcell.data.cache import prepare
from factorcell.data.counts import POPULARITY, TextCounts
from factorcell.model.run import Run
from tests.small_runs import make_letters

ROW = {"text": "abcab", "user": "ann", "city": "Nice", "time": 1}
OTHERS = {name: value for name, value in ROW.items() if name != "text"}


def save(folder: Path, **options: Any) -> Path:
    """A run folder of characters with weights of chance; its context is a city."""
    made = make_letters(spread=0.8, seed=3, **options)
    run = Run.create(folder, made.config, made.tokenizer, made.schema)
    run.model.load_state_dict(made.model.state_dict())
    run.save_weights({})
    return folder


def test_plain_knows_the_context_but_not_the_person() -> None:
    run = make_letters(spread=0.8, seed=3)
    completer = Completer(run)
    of_users, of_cities = Unpersonalised(completer, "user"), Unpersonalised(completer, "city")
    assert of_users.suggest(None, "ab", OTHERS, 5) == completer.complete("ab", context={"city": "Nice"}, k=5)
    assert of_cities.suggest(None, "ab", OTHERS, 5) == completer.complete("ab", k=5)
    (scored,) = run.score(ROW)
    assert of_users.nats(None, ROW) == pytest.approx((scored["nats"], scored["targets"]))
    missing = run.prepare([{"text": "abcab"}], optional=("city",))
    nats, targets = of_cities.nats(None, ROW)
    assert nats == pytest.approx(float(run.nats(missing).sum()))
    assert targets == 6
    assert nats != pytest.approx(scored["nats"], abs=1e-3)


def test_plain_has_no_completion_of_what_is_too_long() -> None:
    plain = Unpersonalised(Completer(make_letters()), "user")
    assert plain.suggest(None, "a" * 12, OTHERS, 3) == []
    assert plain.suggest(None, "a" * 10, OTHERS, 3) != []
    with pytest.raises(UserError, match="Rome"):
        plain.suggest(None, "a", {**OTHERS, "city": "Rome"}, 3)
    kind = Unpersonalised(Completer(make_letters(), unknown="expected"), "user")
    assert kind.nats(None, {**ROW, "city": "Rome"}) == kind.nats(None, {**ROW, "city": None})


def test_people_in_contexts_never_seen(tmp_path: Path) -> None:
    reads = {"user": "who", "tokenizer": "char", "min_user_count": 1, "max_tokens": 12}
    rows = [{"text": text, "city": city, "who": "ann"} for text in ("abc", "cab") for city in ("Oslo", "Nice")]
    config = Config.of(**{**reads, "context": ["city"], "min_count": 1, "min_context_count": 1})
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    run.save_weights({})
    new = {"text": "abc", "city": "Rome"}
    for system in open_systems(run.folder, ["plain", "online"], user_column="who", unknown="expected").values():
        held = system.start("bob")
        assert system.nats(held, new) == system.nats(held, {**new, "city": None})
        system.learn(held, new)
    with pytest.raises(UserError, match="Rome"):
        open_systems(run.folder, ["online"], user_column="who")["online"].nats(held, new)


def test_mpc_is_the_same_for_all_and_history_is_ones_own() -> None:
    popular = Popularity.fit(["abc", "abc", "abd", "b"], min_count=1)
    mpc, own = MostPopular(popular), UserHistory("text")
    assert mpc.suggest(None, "ab", OTHERS, 10) == popular.complete("ab")
    held = own.start("ann")
    later = own.learn(held, ROW)
    assert held == History()
    assert own.suggest(held, "ab", OTHERS, 10) == []
    assert own.suggest(later, "ab", OTHERS, 10) == History(("abcab",)).complete("ab")


def test_systems_are_found_by_name(tmp_path: Path) -> None:
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
    config, columns = reading_config(tmp_path / "runs", ["mpc", "unadapted"], "user")
    assert (config.data.text, columns) == ("text", ["city"])
    assert reading_config(tmp_path / "runs", ["unadapted"], "city")[1] == []
    assert reading_config(tmp_path / "runs", ["mpc"], "user") == (Run.open(folder).config, [])


@pytest.mark.parametrize("gain", [2.0, 0.5])
def test_systems_that_are_compared_have_one_precision(
    gain: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        save(tmp_path / name)
    gains = iter([gain, 2.5 - gain])
    monkeypatch.setattr("factorcell.model.run.measure_speedup", lambda work, device: next(gains))
    both = open_systems(tmp_path, ["two", "one"], precision="auto")
    found = {system.completer.run.precision for system in both.values() if isinstance(system, Unpersonalised)}
    assert found == {"bfloat16" if gain == 2.0 else "float32"}
    assert next(gains) == 2.5 - gain


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="expected a run folder or a folder of runs"):
        open_systems(tmp_path, ["mpc"])
    other = save(tmp_path / "runs" / "two")
    config = files.read_json(other / "config.json")
    config["tokenizer"]["lowercase"] = True
    files.write_json(other / "config.json", config)
    with pytest.raises(UserError, match="one and two read texts in two ways"):
        reading_config(tmp_path / "runs", ["one", "two"], "user")
    assert reading_config(tmp_path / "runs", ["two"], "user")[0].tokenizer.lowercase


def test_a_person_is_learned_and_blended(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs" / "factor", data={"user": "city", "context": (), "min_user_count": 1})
    save(tmp_path / "runs" / "unadapted", adapt=[], output_bias=[])
    TextCounts.of(["abc"] * 3, 1).save(folder / POPULARITY)
    found = open_systems(folder, ["plain", "online", "blend"], user_column="city")
    run, row = Run.open(folder), {"text": "cabcab", "city": "Rome"}
    user = learn_one(run, User.new(run), "cabcab")
    for name, system in found.items():
        assert isinstance(system, Personalised)
        held = system.start("Rome")
        nats, targets = system.nats(held, row)
        assert nats == pytest.approx(float(Learner(run).nats(held.vector[None], ["cabcab"])[0]))
        assert targets == 7
        later = system.learn(held, row)
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


def test_systems_that_suit_a_folder(tmp_path: Path) -> None:
    users: dict[str, Any] = {"user": "city", "context": (), "min_user_count": 1}
    plain, alike = save(tmp_path / "plain"), save(tmp_path / "alike", data=users, adapt=["prefix"], output_bias=[])
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
        made = open_systems(folder, names, user_column="city")
        assert list(made) == names
        assert all(isinstance(made[name], Personalised) for name in names if name in ("online", "blend"))


def test_a_blend_alone_has_the_context_of_its_run(tmp_path: Path) -> None:
    config = Config.of(tokenizer="char", user="user", context=("city",), min_user_count=1, min_context_count=1)
    made = prepare([{**ROW, "city": city} for city in ("Nice", "Oslo")], config)
    run = Run.create(tmp_path / "run", config, made.tokenizer, made.schema)
    run.save_weights({})
    TextCounts.of(["abc"], 1).save(run.folder / POPULARITY)
    assert (
        reading_config(run.folder, ["blend"], "user")[1]
        == reading_config(run.folder, ["online"], "user")[1]
        == ["city"]
    )
    (blend,) = open_systems(run.folder, ["blend"]).values()
    assert blend.suggest(blend.start("ann"), "ab", OTHERS, 3)[0].text.startswith("ab")
