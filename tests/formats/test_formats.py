"""Models and users of every format so far, opened and asked again; formats to come and damage, refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import Blend, Completer, Config, Popularity, Run, User, UserError, files, learn_one, open_scorer
from factorcell import config as options
from factorcell.completion import blend, online
from factorcell.completion.assistant import Assistant
from factorcell.completion.blend import BlendWeights
from factorcell.completion.online import Learner, LearningRule
from factorcell.completion.replay.systems import reading
from factorcell.evaluation import ngram
from factorcell.training import mixture, per_value
from tests.formats.make import answers

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/expected.json"))
NEWEST = HERE / str(max(int(folder.name) for folder in FOLDERS if folder.name.isdecimal()))
LETTERS = "letters"

# Files that carry a number, what is opened by it, how, and what a message calls it.
Opener = Callable[[Path], Any]
NUMBERED: dict[str, tuple[int, Opener, str]] = {
    "words/config.json": (options.FORMAT, lambda folder: Run.open(folder / "words"), "words"),
    "letters/config.json": (options.FORMAT, lambda folder: reading(folder / LETTERS, ["plain"], "who"), LETTERS),
    "kinds/config.json": (options.FORMAT, lambda folder: Config.load(folder / "kinds/config.json"), "config.json"),
    "letters/online.json": (online.FORMAT, lambda folder: LearningRule.of(Run.open(folder / LETTERS)), "online.json"),
    "letters/blend.json": (blend.FORMAT, lambda folder: BlendWeights.of(Run.open(folder / LETTERS)), "blend.json"),
    "ngram/ngram.json": (ngram.FORMAT, lambda folder: open_scorer(folder / "ngram"), "ngram"),
    "separate/separate.json": (per_value.FORMAT, lambda folder: open_scorer(folder / "separate"), "separate"),
    "mixture/mixture.json": (mixture.FORMAT, lambda folder: open_scorer(folder / "mixture"), "mixture"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The newest folder, to be altered."""
    return Path(shutil.copytree(NEWEST, tmp_path / "copy"))


def learned(folder: Path) -> User:
    """The user who has learned something."""
    return User.from_bytes((folder / "learned.user").read_bytes())


def refused(opened: Callable[..., Any], *given: Any) -> str:
    """The one line by which something is refused."""
    with pytest.raises(UserError) as error:
        opened(*given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_format_opens_and_answers_as_it_did(folder: Path) -> None:
    """Nats of every target, suggestions, and what a person becomes by one more text."""
    expected, found = files.read_json(folder / "expected.json"), answers(folder)
    assert found["nats"].keys() == expected["nats"].keys()
    for name, nats in expected["nats"].items():
        assert found["nats"][name] == pytest.approx(nats, abs=1e-5), name
    assert found["users"].keys() == expected["users"].keys() == {"learned", "new"}
    for name, user in expected["users"].items():
        for key, value in user.items():
            numbers = key in ("vector", "after")
            assert found["users"][name][key] == (pytest.approx(value, abs=1e-5) if numbers else value), (name, key)


def test_the_newest_folder_is_of_the_formats_of_today(tmp_path: Path) -> None:
    """Whoever raises a number adds a folder; what stands in one is what is written today."""
    for name, (number, _, _) in NUMBERED.items():
        assert files.read_json(NEWEST / name)["format"] == number
    run = Run.open(NEWEST / LETTERS)
    Run.create(tmp_path / "run", run.config, run.vocabulary, run.schema)
    written, kept = (files.read_json(path / "config.json") for path in (tmp_path / "run", NEWEST / LETTERS))
    for section, options_then in kept.items():  # options that came later have their defaults
        assert section == "format" or written[section].items() >= options_then.items()
    assert not [name for name in NUMBERED if "format" in files.read_json(HERE / "before" / name)]
    content = (NEWEST / "learned.user").read_bytes()
    assert content[3] == online.USER_FORMAT
    assert learned(NEWEST).to_bytes() == content


@pytest.mark.parametrize("name", NUMBERED)
def test_a_newer_format_is_refused_with_what_to_do(name: str, copy: Path) -> None:
    newest, opened, what = NUMBERED[name]
    content = files.read_json(copy / name)
    files.write_json(copy / name, {**content, "format": newest + 1, "unheard": "of"})
    message = refused(opened, copy)
    assert message.endswith(
        f"/{what}: its format is {newest + 1}, this factorcell reads up to {newest}; "
        "upgrade factorcell (pip install --upgrade factorcell)"
    )


@pytest.mark.parametrize("name", NUMBERED)
def test_what_is_no_number_is_damage(name: str, copy: Path) -> None:
    _, opened, what = NUMBERED[name]
    content = files.read_json(copy / name)
    for number in (0, -1, 1.0, True, "1", None, [1]):
        files.write_json(copy / name, {**content, "format": number})
        assert f"{what}: damaged (its format is {number!r}" in refused(opened, copy)
    for wrong in ("[]", "1", '{"format": 1'):
        (copy / name).write_text(wrong, encoding="utf-8")
        assert (copy / name).name in refused(opened, copy)


def test_a_recipe_may_be_the_config_of_a_run() -> None:
    """With a number and without."""
    config = Run.open(NEWEST / "words").config
    assert Config.load(NEWEST / "words" / "config.json") == config
    assert Config.load(HERE / "before" / "words" / "config.json") == config


def test_a_fingerprint_is_of_the_weights_and_not_of_the_place(copy: Path) -> None:
    run = Run.open(copy / LETTERS)
    assert len(run.fingerprint) == 16
    assert run.fingerprint == Run.open(NEWEST / LETTERS).fingerprint == learned(NEWEST).fingerprint
    assert run.fingerprint != Run.open(NEWEST / "words").fingerprint
    assert Run.open(copy / LETTERS, trained=False).fingerprint == b""
    train_on(copy / LETTERS)
    assert Run.open(copy / LETTERS).fingerprint != run.fingerprint
    assert run.fingerprint == learned(NEWEST).fingerprint, "it has the weights that it has loaded"


def train_on(folder: Path) -> None:
    """Give the run in a folder other weights."""
    run = Run.open(folder)
    with torch.no_grad():
        run.model.embedding.add_(0.01)
    run.save_weights({})


def test_a_user_of_another_run_is_refused(copy: Path) -> None:
    """Of the same sizes: its vector would be read, and mean something else."""
    train_on(copy / LETTERS)
    run, user = Run.open(copy / LETTERS), learned(NEWEST)
    line = (
        f"this user belongs to another run (fingerprint {user.fingerprint.hex()[:8]}..., this run is "
        f"{run.fingerprint.hex()[:8]}...); learn the person again from their texts"
    )
    completer, popularity = Completer(run), Popularity.of(run)
    assert refused(learn_one, run, user, "bat") == line
    assert refused(Learner(run).risen, user, ["bat"]) == line
    assert refused(completer.begin, user) == line
    assert refused(completer.complete, "ba", user) == line
    assert refused(Blend(completer, popularity).complete, "ba", user) == line
    assert refused(Assistant.of(run).learn, user, "bat") == line
    again = User.new(run)
    for text in user.history.texts:
        again = learn_one(run, again, text)
    assert completer.complete("ba", User.from_bytes(again.to_bytes()), k=2)


def test_a_user_from_before_numbers_belongs_to_whoever_learns_from_it(copy: Path) -> None:
    """Nothing is known of its run until it learns again; only its size can be checked."""
    run, user = Run.open(copy / LETTERS), learned(HERE / "before")
    assert user.fingerprint == b""
    assert User.from_bytes(user.to_bytes()).fingerprint == b""
    user = learn_one(run, user, "bat")
    assert user.fingerprint == run.fingerprint
    untrained = Run.open(copy / LETTERS, trained=False)
    assert learn_one(untrained, user, "bat").fingerprint == user.fingerprint, "a run without one takes none away"
    train_on(copy / LETTERS)
    assert "belongs to another run" in refused(learn_one, Run.open(copy / LETTERS), user, "bat")
    short = User(user.vector[:2], user.state[:, :2])
    assert "a user of 2 numbers; those of " in refused(Completer(run).begin, short)


def test_altered_users_are_refused() -> None:
    """Cut anywhere, any byte altered, or of a format to come: one line each."""
    content = (NEWEST / "learned.user").read_bytes()
    for size in range(len(content)):
        assert "not a user" in refused(User.from_bytes, content[:size])
    for place in range(len(content)):
        altered = bytes([*content[:place], content[place] ^ 1, *content[place + 1 :]])
        message = refused(User.from_bytes, altered)
        assert ("its format is 0" if place == 3 else "not a user") in message
    newer = bytes([*content[:3], online.USER_FORMAT + 1]) + b"?"
    assert refused(User.from_bytes, newer) == (
        f"this user: its format is {online.USER_FORMAT + 1}, this factorcell reads up to {online.USER_FORMAT}; "
        "upgrade factorcell (pip install --upgrade factorcell)"
    )


def test_cut_users_from_before_numbers_are_refused() -> None:
    """They have no checksum, but lengths: only between two texts a cut is not seen."""
    content = (HERE / "before" / "learned.user").read_bytes()
    user, ends = learned(HERE / "before"), [8 + 4 * 3 * 3]  # of sizes and numbers, then of each text
    for text in user.history.texts:
        ends.append(ends[-1] + 4 + len(text))
    for size in range(len(content)):
        if size in ends:
            assert len(User.from_bytes(content[:size]).history.texts) == ends.index(size)
        else:
            assert "not a user" in refused(User.from_bytes, content[:size])
    assert ends[-1] == len(content)


def test_the_folders_are_small_and_name_no_place() -> None:
    """Nobody pays for them, and nothing in them depends on where they were made."""
    for folder in FOLDERS:
        content = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert sum(map(len, content)) < 100_000
        assert not [part for part in content if b"/tmp" in part or b"/home" in part]
        assert json.loads((folder / "mixture" / "mixture.json").read_bytes())["models"][0] == "../words"
