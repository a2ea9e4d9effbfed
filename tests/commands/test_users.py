"""The commands `users`: stored users and keys."""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from factorcell.commands import serving
from factorcell.commands.cli import main
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from tests.service import runs
from tests.service.oracle import learned_by_library, learned_by_service
from tests.small_runs import make_letters


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(runs.make_run(tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture
def url(model: ServedModel, tmp_path: Path) -> str:
    store_url = f"sqlite:///{tmp_path / 'users.db'}"
    service = Service(model, open_store(store_url))
    for text in ("abba", "cab", "abba"):
        service.accept("ann", text, context={"city": "Oslo"})
    service.accept("bob", "acc")
    service.close()
    return store_url


def run_command(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[list[str], str]:
    capsys.readouterr()
    assert main.main(words) == code
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


def test_users_are_listed_and_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["users", "list", "--store", url], capsys)[0] == ["ann", "bob"]
    lines, _ = run_command(["users", "show", "ann", "--store", url], capsys)
    assert lines[0] == "3 texts stored, 3 accepted in total"
    assert [line.split("\t")[2] for line in lines[1:]] == ["abba", "cab", "abba"]
    assert [line.split("\t")[3] for line in lines[1:]] == ['{"city": "Oslo"}'] * 3
    assert "is not in the store" in run_command(["users", "show", "eve", "--store", url], capsys, 2)[1]


def test_the_store_can_be_set_in_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FACTORCELL_STORE", url)
    assert run_command(["users", "list"], capsys)[0] == ["ann", "bob"]
    assert run_command(["users", "export", "ann", "--store", url], capsys)[0]


def test_the_only_store_that_serve_made_by_default_is_used(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _, message = run_command(["users", "list"], capsys, 2)
    assert message.startswith(
        "factorcell: store: expected a file *.users.db of `serve` in this folder or in a subfolder;"
    )
    path = serving.default_store_path(Path("runs/names"))
    path.parent.mkdir()
    Path(url.removeprefix("sqlite:///")).rename(path)
    users_listed, message = run_command(["users", "list"], capsys)
    assert (users_listed, message) == (["ann", "bob"], "store: runs/names.users.db\n")
    assert run_command(["users", "show", "bob"], capsys)[0][1].split("\t")[2] == "acc"
    assert run_command(["users", "delete", "bob"], capsys)[1].endswith("users deleted: 1 of 1\n")
    open_store("sqlite:///other.users.db").close()
    message = run_command(["users", "list"], capsys, 2)[1]
    assert "got 2; choose from --store sqlite:///other.users.db, --store sqlite:///runs/names.users.db" in message
    assert run_command(["users", "list", "--store", "sqlite:///runs/names.users.db"], capsys)[0] == ["ann"]


def test_a_missing_store_is_an_error_except_for_import(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["list"], ["export"], ["show", "ann"], ["forget", "ann", "abba"], ["delete", "ann"]):
        _, message = run_command(["users", *words, "--store", f"{url}.other"], capsys, 2)
        assert message == f"factorcell: {tmp_path}/users.db.other: the store does not exist; check --store\n"
        assert not (tmp_path / "users.db.other").exists()
    (tmp_path / "nobody.jsonl").write_text("")
    run_command(["users", "import", str(tmp_path / "nobody.jsonl"), "--store", f"{url}.other"], capsys)
    assert run_command(["users", "list", "--store", f"{url}.other"], capsys) == ([], "the store has no users\n")


def test_users_are_exported_imported_and_learned_again(
    url: str, model: ServedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = run_command(["users", "export", "--store", url], capsys)
    assert [json.loads(line)["user"] for line in lines] == ["ann", "bob"]
    file, other = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for count in (2, 0):
        message = run_command(["users", "import", str(file), "--store", other], capsys)[1]
        assert message.startswith(f"users imported: {count};")
    assert run_command(["users", "export", "--store", other], capsys)[0] == lines
    assert (
        "has learned the texts of 2 users"
        in run_command(["users", "migrate", str(model.run.folder), "--store", other], capsys)[1]
    )
    service = Service(model, open_store(other))
    assert learned_by_service(service, "ann") == learned_by_library(
        model, [(text, {"city": "Oslo"}) for text in ("abba", "cab", "abba")]
    )
    service.close()


def test_the_import_continues_after_a_bad_line(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ann, bob), _ = run_command(["users", "export", "--store", url], capsys)
    file, other = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    file.write_text("\n".join([ann, "{", '{"format": 99}', bob]), encoding="utf-8-sig")
    _, message = run_command(["users", "import", str(file), "--store", other], capsys, 2)
    assert [line.removeprefix(f"{file} ").partition(":")[0] for line in message.splitlines()[:2]] == [
        "line 2",
        "line 3",
    ]
    assert message.splitlines()[2:] == [
        "users imported: 2; users that existed already and were not changed: 0",
        f"factorcell: {file}: 2 of 4 lines could not be imported",
    ]
    assert run_command(["users", "export", "--store", other], capsys)[0] == [ann, bob]


def test_the_import_omits_private_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    texts = [{"text": text, "time": 1} for text in ("abba", "my password is hunter2", "write to ann@example.org")]
    many_texts = [{"text": f"a{number}", "time": number} for number in range(1007)]
    users_of_texts = [{"format": 1, "user": "ann", "paused": False, "texts": texts}]
    users_of_texts += [{**users_of_texts[0], "user": "bob", "texts": [texts[1], *many_texts]}]
    file.write_text("\n".join(map(json.dumps, users_of_texts)))
    _, message = run_command(["users", "import", str(file), "--store", store], capsys)
    omitted = "texts that were omitted, since"
    assert message.splitlines()[1:] == [
        f"{omitted} they seem to contain a password: 2",
        f"{omitted} they seem to contain an e-mail address: 1",
        f"{omitted} only the newest 1,000 texts of a user, of 256 KiB in total, are stored: 7",
    ]
    exported, _ = run_command(["users", "export", "--store", store], capsys)
    stored_texts = [[text["text"] for text in json.loads(line)["texts"]] for line in exported]
    assert stored_texts == [["abba"], [text["text"] for text in many_texts[7:]]]
    _, message = run_command(["users", "import", str(file), "--store", store], capsys)
    assert message.splitlines()[1:] == [], "users who are in the store are not changed"


def test_the_import_omits_empty_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    texts = [{"text": text, "time": 1} for text in ("abba", "", " \t\u2003", "cab")]
    file.write_text(json.dumps({"format": 1, "user": "ann", "paused": False, "texts": texts}))
    _, message = run_command(["users", "import", str(file), "--store", store], capsys)
    omitted = "texts that were omitted, since they are empty: 2"
    assert message.splitlines()[1:] == [omitted]
    (line,), _ = run_command(["users", "export", "--store", store], capsys)
    assert [text["text"] for text in json.loads(line)["texts"]] == ["abba", "cab"]


def test_times_of_an_import_may_have_fractions_or_be_iso_8601(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    times = (1156516427.9, 5, "2026-01-01T00:00:00.5Z", "2026-01-01T01:00+01:00", "2026-01-01")
    exported = {"format": 1, "user": "ann", "paused": False, "texts": [{"text": "a", "time": time} for time in times]}
    file.write_text(json.dumps(exported))
    run_command(["users", "import", str(file), "--store", store], capsys)
    (line,), _ = run_command(["users", "export", "--store", store], capsys)
    assert [text["time"] for text in json.loads(line)["texts"]] == [1156516427, 5, *[1767225600] * 3]
    for time in (-1, True, None, "noon", 1e12, "0001-01-01T00:00+01:00"):
        file.write_text(json.dumps({**exported, "texts": [{"text": "a", "time": 1}, {"text": "a", "time": time}]}))
        _, message = run_command(["users", "import", str(file), "--store", store], capsys, 2)
        assert message.startswith(f"{file} line 1: export: ")
        assert "time" in message


def test_a_user_deleted_during_the_export_is_skipped(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("factorcell.service.stores.store.all_users", lambda store: iter(("aaa", "ann", "anna", "bob")))
    lines, _ = run_command(["users", "export", "--store", url], capsys)
    assert [json.loads(line)["user"] for line in lines] == ["ann", "bob"]
    assert "is not in the store" in run_command(["users", "export", "ann", "anna", "--store", url], capsys, 2)[1]


def test_damaged_records_are_skipped_and_reported(
    url: str, model: ServedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(model, open_store(url))
    for user in ("aaa", "ben", "eve"):
        service.accept(user, "abba")
    service.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE factorcell_users SET value = x'00' WHERE user_id IN (?, ?)", (b"aaa", b"ben"))
    notices = [f"user '{user}' is skipped: user record: truncated or altered" for user in ("aaa", "ben")]
    total = "factorcell: store: 2 users were skipped, because their records are damaged; "
    for words in ([], ["aaa", "ann", "ben", "bob", "eve"]):
        lines, message = run_command(["users", "export", *words, "--store", url], capsys, 2)
        assert [json.loads(line)["user"] for line in lines] == ["ann", "bob", "eve"]
        assert message.splitlines()[:2] == notices
        assert message.splitlines()[2].startswith(total)
    _, message = run_command(["users", "migrate", str(model.run.folder), "--store", url], capsys, 2)
    assert message.splitlines()[:-1] == [*notices, f"{model.run.folder} has learned the texts of 3 users"]
    assert message.splitlines()[-1].startswith(total)


def test_migration_requires_a_run_that_distinguishes_users(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = make_letters()
    Run.create(tmp_path / "run", letters.config, letters.tokenizer, letters.schema).save_weights({})
    message = run_command(["users", "migrate", str(tmp_path / "run"), "--store", url], capsys, 2)[1]
    assert "does not distinguish users" in message


def test_downloaded_data_can_be_imported(
    url: str, model: ServedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(model, open_store(url))
    service.accept("eve", "a b c d")
    values = msgspec.to_builtins(service.show("eve"))
    values["texts"][0]["text"] = "a\u2028b\x85c\x0bd"  # characters that some readers treat as line ends
    service.close()
    file = tmp_path / "eve.json"
    for number, content in enumerate((json.dumps(values), json.dumps(values, ensure_ascii=False) + "\n\n")):
        file.write_text(content, encoding="utf-8")
        other = f"sqlite:///{tmp_path / f'other{number}.db'}"
        assert run_command(["users", "import", str(file), "--store", other], capsys)[1].startswith("users imported: 1;")
        store = open_store(other)
        record = store.read("eve")
        store.close()
        assert record is not None
        assert [text.text for text in record.texts] == ["a b c d"]


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 10_000, "{}", "\x00", '{"format": 1e999}', "nan"])
def test_invalid_exports_are_reported_by_line(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "users.jsonl"
    file.write_text(content, encoding="utf-8")
    message = run_command(["users", "import", str(file), "--store", f"sqlite:///{tmp_path / 'users.db'}"], capsys, 2)[1]
    assert "line 1: " in message
    assert message.splitlines()[1:] == [
        "users imported: 0; users that existed already and were not changed: 0",
        f"factorcell: {file}: 1 of 1 lines could not be imported",
    ]


def test_texts_are_forgotten_and_users_deleted(
    url: str, model: ServedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "texts deleted: 2" in run_command(["users", "forget", "ann", "abba", "--store", url], capsys)[1]
    assert "no such text" in run_command(["users", "forget", "ann", "abba", "--store", url], capsys)[1]
    assert "no such text" in run_command(["users", "forget", "eve", "abba", "--store", url], capsys)[1]
    service = Service(model, open_store(url))
    assert service.relearn("ann")
    assert learned_by_service(service, "ann") == learned_by_library(model, [("cab", {"city": "Oslo"})])
    service.close()
    run_command(["users", "delete", "bob", "", "--store", url], capsys, 2)  # an empty id: nobody is deleted
    assert run_command(["users", "list", "--store", url], capsys)[0] == ["ann", "bob"]
    assert "users deleted: 1 of 2" in run_command(["users", "delete", "ann", "eve", "--store", url], capsys, 2)[1]
    assert run_command(["users", "list", "--store", url], capsys)[0] == ["bob"]


@pytest.mark.parametrize(
    ("saved", "requested"),
    [
        ("ABBA", "abba"),
        ("İstanbul", "istanbul"),
        ("İstanbul", "ISTANBUL"),
        ("ısır", "ISIR"),
        ("Straße", "STRASSE"),
        ("ΟΔΟΣ", "οδος"),
        ("l’idiot", "L'idiot"),
        ("co–ed", "co-ed"),
    ],
)
def test_forget_deletes_texts_that_look_alike_in_any_case(
    url: str, model: ServedModel, capsys: pytest.CaptureFixture[str], saved: str, requested: str
) -> None:
    service = Service(model, open_store(url))
    service.accept("eve", saved)
    service.close()
    assert "texts deleted: 1" in run_command(["users", "forget", "eve", requested, "--store", url], capsys)[1]


def test_key_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    words = ["users", "key", "shop", "--keys", str(file), "--scope", "complete", "--rate", "5"]
    (key,), _ = run_command(words, capsys)
    (stored_key,) = keys.read_keys(file)
    assert (stored_key.name, stored_key.hash, stored_key.scopes, stored_key.rate) == (
        "shop",
        hashlib.sha256(key.encode()).hexdigest(),
        ("complete",),
        5,
    )
    assert "already" in run_command(words, capsys, 2)[1]


def test_key_is_revoked_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    for name in ("old", "new"):
        run_command(["users", "key", name, "--keys", str(file), "--scope", "complete"], capsys)
    revoke = ["users", "key", "old", "--keys", str(file), "--revoke"]
    assert "the key old is removed" in run_command(revoke, capsys)[1]
    assert [entry.name for entry in keys.read_keys(file)] == ["new"]
    assert file.stat().st_mode & 0o077 == 0
    assert "unknown key 'old'" in run_command(revoke, capsys, 2)[1]
    assert "--revoke" in run_command(["users", "key", "third", "--keys", str(file)], capsys, 2)[1]


@pytest.mark.parametrize("store", ["users.db", "mysql://x", "sqlite:///"])
def test_invalid_store_urls_are_errors(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sqlite:///FILE" in run_command(["users", "list", "--store", store], capsys, 2)[1]


def test_the_import_omits_texts_that_match_a_pattern(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = tmp_path / "users.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    texts = [{"text": text, "time": 1} for text in ("abba", "Acme contract")]
    file.write_text(json.dumps({"format": 1, "user": "ann", "paused": False, "texts": texts}))
    _, message = run_command(["users", "import", str(file), "--store", store, "--withhold", "(?i)acme"], capsys)
    assert "texts that were omitted, since they seem to contain a withheld pattern: 1" in message
    lines, _ = run_command(["users", "show", "ann", "--store", store], capsys)
    assert [line.split("\t")[2] for line in lines[1:]] == ["abba"]
