"""The verbs about people who are kept, and about keys."""

import hashlib
import json
from pathlib import Path

import pytest

from factorcell.commands import main, users
from factorcell.model.run import Run
from factorcell.service.engine import Service
from factorcell.service.http import keys
from factorcell.service.learning import ServedModel
from factorcell.service.stores.opening import open_store
from tests.service import runs
from tests.service.oracle import learned_by_library, learned_by_service
from tests.small_runs import make_letters


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(runs.make_run(tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture
def url(model: ServedModel, tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'users.db'}"
    service = Service(model, open_store(found))
    for text in ("abba", "cab", "abba"):
        service.accept("ann", text, context={"city": "Oslo"})
    service.accept("bob", "acc")
    service.close()
    return found


def said(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[list[str], str]:
    capsys.readouterr()
    assert main.main(words) == code
    found = capsys.readouterr()
    return found.out.splitlines(), found.err


def test_people_are_listed_and_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["users", "list", "--store", url], capsys)[0] == ["ann", "bob"]
    lines, _ = said(["users", "show", "ann", "--store", url], capsys)
    assert lines[0] == "3 texts are kept of 3 that were accepted"
    assert [line.split("\t")[2] for line in lines[1:]] == ["abba", "cab", "abba"]
    rows, _ = said(["users", "show", "ann", "--json", "--store", url], capsys)
    assert json.loads(rows[1])["context"] == {"city": "Oslo"}
    assert "nothing is kept" in said(["users", "show", "eve", "--store", url], capsys, 2)[1]


def test_the_environment_may_say_where(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["users", "list"])
    assert "--store" in capsys.readouterr().err
    monkeypatch.setenv("FACTORCELL_STORE", url)
    assert said(["users", "list"], capsys)[0] == ["ann", "bob"]
    assert said(["users", "export", "ann", "--store", url], capsys)[0]


def test_a_name_mistyped_is_no_empty_store(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list"], ["export"], ["show", "ann"], ["forget", "ann", "abba"], ["delete", "ann"]):
        _, message = said(["users", *words, "--store", f"{url}.other"], capsys, 2)
        assert message == f"factorcell: {tmp_path}/users.db.other: the store does not exist; check --store\n"
        assert not (tmp_path / "users.db.other").exists()
    (tmp_path / "nobody.jsonl").write_text("")
    said(["users", "import", str(tmp_path / "nobody.jsonl"), "--store", f"{url}.other"], capsys)
    assert said(["users", "list", "--store", f"{url}.other"], capsys) == ([], "nobody is kept\n")


def test_people_travel(url: str, model: ServedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = said(["users", "export", "--store", url], capsys)
    assert [json.loads(line)["user"] for line in lines] == ["ann", "bob"]
    file, other = tmp_path / "people.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for count in (2, 0):
        message = said(["users", "import", str(file), "--store", other], capsys)[1]
        assert message.startswith(f"people kept now: {count};")
    assert said(["users", "export", "--store", other], capsys)[0] == lines
    assert "are learned" in said(["users", "migrate", str(model.run.folder), "--store", other], capsys)[1]
    service = Service(model, open_store(other))
    assert learned_by_service(service, "ann") == learned_by_library(
        model, [(text, {"city": "Oslo"}) for text in ("abba", "cab", "abba")]
    )
    service.close()


def test_the_import_continues_after_a_bad_line(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ann, bob), _ = said(["users", "export", "--store", url], capsys)
    file, other = tmp_path / "people.jsonl", f"sqlite:///{tmp_path / 'other.db'}"
    file.write_text("\n".join([ann, "{", '{"format": 99}', bob]), encoding="utf-8-sig")
    _, message = said(["users", "import", str(file), "--store", other], capsys, 2)
    assert [line.removeprefix(f"{file} ").partition(":")[0] for line in message.splitlines()[:2]] == [
        "line 2",
        "line 3",
    ]
    assert message.splitlines()[2:] == [
        "people kept now: 2; there already, and as they were: 0",
        f"factorcell: {file}: 2 of 4 lines could not be imported",
    ]
    assert said(["users", "export", "--store", other], capsys)[0] == [ann, bob]


def test_whoever_is_deleted_meanwhile_is_not_exported(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(users, "all_users", lambda store: iter(("aaa", "ann", "anna", "bob")))
    lines, _ = said(["users", "export", "--store", url], capsys)
    assert [json.loads(line)["user"] for line in lines] == ["ann", "bob"]
    assert "nothing is kept" in said(["users", "export", "ann", "anna", "--store", url], capsys, 2)[1]


def test_a_run_that_tells_nobody_apart_learns_nobody(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_letters()
    Run.create(tmp_path / "run", made.config, made.tokenizer, made.schema).save_weights({})
    message = said(["users", "migrate", str(tmp_path / "run"), "--store", url], capsys, 2)[1]
    assert "does not distinguish users" in message


def test_people_come_back_as_they_were_downloaded(
    url: str, model: ServedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(model, open_store(url))
    service.accept("eve", "a b c d")
    values = service.export("eve")
    assert values is not None
    values["texts"][0]["text"] = "a\u2028b\x85c\x0bd"  # what splits lines for some readers
    service.close()
    file = tmp_path / "eve.json"
    for number, content in enumerate((json.dumps(values, indent=2), json.dumps(values, ensure_ascii=False) + "\n\n")):
        file.write_text(content, encoding="utf-8")
        other = f"sqlite:///{tmp_path / f'other{number}.db'}"
        assert said(["users", "import", str(file), "--store", other], capsys)[1].startswith("people kept now: 1;")
        store = open_store(other)
        record = store.read("eve")
        store.close()
        assert record is not None
        assert [one.text for one in record.texts] == ["a b c d"]


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 10_000, "{}", "\x00", '{"format": 1e999}', "nan"])
def test_what_is_no_person_is_a_line(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "people.jsonl"
    file.write_text(content, encoding="utf-8")
    message = said(["users", "import", str(file), "--store", f"sqlite:///{tmp_path / 'users.db'}"], capsys, 2)[1]
    assert "line 1: " in message
    assert message.splitlines()[1:] == [
        "people kept now: 0; there already, and as they were: 0",
        f"factorcell: {file}: 1 of 1 lines could not be imported",
    ]


def test_people_forget(url: str, model: ServedModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert "texts that are gone: 2" in said(["users", "forget", "ann", "abba", "--store", url], capsys)[1]
    assert "no such text" in said(["users", "forget", "ann", "abba", "--store", url], capsys)[1]
    assert "no such text" in said(["users", "forget", "eve", "abba", "--store", url], capsys)[1]
    service = Service(model, open_store(url))
    assert service.relearn("ann")
    assert learned_by_service(service, "ann") == learned_by_library(model, [("cab", {"city": "Oslo"})])
    service.close()
    assert "1 of 2 people are deleted" in said(["users", "delete", "ann", "eve", "--purge", "--store", url], capsys)[1]
    assert said(["users", "list", "--store", url], capsys)[0] == ["bob"]


def test_key_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    words = ["users", "key", "shop", "--keys", str(file), "--scope", "complete", "--rate", "5"]
    (key,), _ = said(words, capsys)
    (one,) = keys.read_keys(file)
    assert (one.name, one.hash, one.scopes, one.rate) == (
        "shop",
        hashlib.sha256(key.encode()).hexdigest(),
        ("complete",),
        5,
    )
    assert "already" in said(words, capsys, 2)[1]


@pytest.mark.parametrize("store", ["users.db", "mysql://x", "sqlite:///"])
def test_what_is_no_store(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sqlite:///FILE" in said(["users", "list", "--store", store], capsys, 2)[1]
