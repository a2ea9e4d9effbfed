"""Format numbers of files and fingerprints of users: files of another version or run are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from factorcell import Completer, Run, UserError
from factorcell import config as options
from factorcell.completion import Blend, Popularity, User, learn_one, online
from factorcell.completion.blend import BlendWeights
from factorcell.config import Config
from factorcell.io import files
from factorcell.ngram import mixture, ngram
from factorcell.training import open_scorer
from tests.model_folders import make_models

# For each file with a format number: the newest format, a function that opens the file, its name in error messages.
Opener = Callable[[Path], Any]
NUMBERED: dict[str, tuple[int, Opener, str]] = {
    "words/config.json": (options.FORMAT, lambda folder: Run.open(folder / "words"), "words"),
    "letters/config.json": (
        options.FORMAT,
        lambda folder: Run.open(folder / "letters"),
        "letters",
    ),
    "recipe/config.json": (
        options.FORMAT,
        lambda folder: Config.of(config=folder / "recipe/config.json"),
        "config.json",
    ),
    "letters/completion.json": (
        online.FORMAT,
        lambda folder: BlendWeights.load(folder / "letters"),
        "completion.json",
    ),
    "ngram/ngram.json": (ngram.FORMAT, lambda folder: open_scorer(folder / "ngram"), "ngram"),
    "mixture/mixture.json": (mixture.FORMAT, lambda folder: open_scorer(folder / "mixture"), "mixture"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one model folder of each kind."""
    make_models(tmp_path)
    (tmp_path / "recipe").mkdir()
    files.write_json(tmp_path / "recipe/config.json", files.read_json(tmp_path / "words/config.json"))
    return tmp_path


def user_of(run: Run) -> User:
    """Return a user with two learned texts."""
    return learn_one(run, learn_one(run, User.new(run), "bat"), "ball")


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    """Return the error message of a call, which must be one line."""
    with pytest.raises(UserError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", NUMBERED)
def test_files_with_another_format_number_are_refused(name: str, folder: Path) -> None:
    newest, open_file, what = NUMBERED[name]
    content = files.read_json(folder / name)
    assert content["format"] == newest
    open_file(folder)
    files.write_json(folder / name, {**content, "format": newest + 1, "unknown": "key"})
    assert refusal(open_file, folder).endswith(
        f"/{what}: its format is {newest + 1}, but this version reads up to {newest}; upgrade factorcell"
    )
    for number in (0, 1.0, True, "1", None, [1]):
        files.write_json(folder / name, {**content, "format": number})
        assert f"{what}: damaged (its format is {number!r}" in refusal(open_file, folder)
    for content_text in ("[]", "1", '{"format": 1'):
        (folder / name).write_text(content_text, encoding="utf-8")
        assert (folder / name).name in refusal(open_file, folder)


def test_a_recipe_may_be_the_config_of_a_run(folder: Path) -> None:
    path = folder / "recipe/config.json"
    config = Run.open(folder / "words").config
    assert Config.of(config=path) == config
    files.write_json(path, config.to_dict())
    assert Config.of(config=path) == config


def test_a_fingerprint_depends_on_the_weights_alone(folder: Path) -> None:
    run = Run.open(folder / "letters")
    assert len(run.fingerprint) == 16
    assert run.fingerprint == user_of(run).fingerprint
    assert run.fingerprint != Run.open(folder / "words").fingerprint
    assert Run.open(folder / "letters", trained=False).fingerprint == b""
    (folder / "letters").rename(folder / "moved")
    assert Run.open(folder / "moved").fingerprint == run.fingerprint
    change_weights(folder / "moved")
    assert Run.open(folder / "moved").fingerprint != run.fingerprint


def change_weights(folder: Path) -> None:
    """Change the weights of the run in a folder."""
    run = Run.open(folder)
    with torch.no_grad():
        run.model.embedding.add_(0.01)
    run.save_weights({})


def test_a_user_of_another_run_is_refused(folder: Path) -> None:
    user = user_of(Run.open(folder / "letters"))
    change_weights(folder / "letters")
    run = Run.open(folder / "letters")
    line = (
        f"this user belongs to another run (fingerprint {user.fingerprint.hex()[:8]}..., this run is "
        f"{run.fingerprint.hex()[:8]}...); learn the user again from the user's texts"
    )
    completer, popularity = Completer(run), Popularity.from_run(run)
    assert refusal(learn_one, run, user, "bat") == line
    assert refusal(completer.begin, user) == line
    assert refusal(completer.complete, "ba", user) == line
    assert refusal(Blend(run, popularity).complete, "ba", user) == line
    again = User.new(run)
    for text in user.history.texts:
        again = learn_one(run, again, text)
    assert completer.complete("ba", User.from_bytes(again.to_bytes()), k=2)


def test_a_user_of_a_run_without_weights_on_disk_takes_the_fingerprint_of_the_run_that_learns(folder: Path) -> None:
    untrained, run = Run.open(folder / "letters", trained=False), Run.open(folder / "letters")
    user = User.new(untrained)
    assert User.from_bytes(user.to_bytes()).fingerprint == user.fingerprint == b""
    user = learn_one(run, user, "bat")
    assert user.fingerprint == run.fingerprint
    assert learn_one(untrained, user, "bat").fingerprint == user.fingerprint
    short = User(user.vector[:1], user.state[:, :1])
    assert "expected a user vector of size 2, got size 1" in refusal(Completer(run).begin, short)


def test_altered_users_are_refused(folder: Path) -> None:
    content = user_of(Run.open(folder / "letters")).to_bytes()
    assert content[3] == online.USER_FORMAT
    for size in range(len(content)):
        assert "invalid user" in refusal(User.from_bytes, content[:size])
    for place in range(len(content)):
        altered = bytes([*content[:place], content[place] ^ 1, *content[place + 1 :]])
        message = refusal(User.from_bytes, altered)
        assert ("its format is 0" if place == 3 else "invalid user") in message
    assert "invalid user" in refusal(User.from_bytes, content[4 : -online.CHECKSUM_BYTES])
    newer = bytes([*content[:3], online.USER_FORMAT + 1]) + b"?"
    assert refusal(User.from_bytes, newer) == (
        f"this user: its format is {online.USER_FORMAT + 1}, "
        f"but this version reads up to {online.USER_FORMAT}; "
        "upgrade factorcell"
    )
