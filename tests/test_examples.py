"""The script that builds tables from Debian packages: its parsers, its splits and its error messages."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples import public_tables

PACKAGES = """Package: tool
Source: tools (1.2-3)
Installed-Size: 28
Maintainer: Ada Lovelace <ada@example.org>
Description:  counts\tthings
Tag: role::program,
 use::counting
Section: non-free/utils
Priority: extra

Package: tool-doc
Installed-Size: 7
Maintainer: Debian Tools Team <tools@example.org>
Description: counts things (manual)
Section: doc

Package: without-section
Installed-Size: 7
Maintainer: Nobody <nobody@example.org>
Description: is skipped
"""
LOG = f"""commit {"a" * 40}
Author: Ada Lovelace <ada@example.org>
Date:   Tue Feb 7 00:30:37 2023 +0100

    Count   things faster

    commit messages have bodies.

 tool.c | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

commit {"b" * 40}
Merge: 1234567 89abcde
Author: Ada Lovelace <ada@example.org>
Date:   Mon Feb 6 12:00:00 2023 +0000

    Merge branch 'faster'

commit {"c" * 40}
Author: ada lovelace <other@example.org>
Date:   Sun Feb 5 12:00:00 2023 -0230

    {"x" * 150}
"""
CHANGELOG = """tool (2.0-1) Unstable; urgency=LOW (fixes a bug)

  [ Grace Hopper ]
  * New release,
    with a manual.
    - nested entry
      of two lines

  [ Ada Lovelace ]
  * Fix.

 -- Ada Lovelace <ada@example.org>  Mon, 05 Aug 2019 02:27:14 +0100

tool (1.0-1) experimental unstable; urgency=medium

  * First release.

 -- Grace Hopper <grace@example.org>  Sun, 04 Aug 1996 02:27:14 +0100

tool (0.9) unstable; urgency=medium

  * An upload without a signature.
"""


def test_a_description_is_a_row_with_its_source_and_context() -> None:
    first, second = public_tables.read_descriptions(PACKAGES)
    assert first == {
        "text": "counts things",
        "source": "tools",
        "section": "utils",
        "maintainer": "Ada Lovelace",
        "priority": "extra",
        "size": 28.0,
    }
    assert (second["source"], second["priority"]) == ("tool-doc", "optional")


def test_a_commit_is_a_row_and_a_merge_is_not() -> None:
    first, second = public_tables.read_commits("tool", LOG)
    assert (first["text"], first["project"], first["time"]) == ("Count things faster", "tool", "2023-02-06T23:30:37Z")
    assert (second["text"], second["time"]) == ("x" * 100, "2023-02-05T14:30:00Z")
    assert first["user"] == second["user"]
    assert "ada" not in str(first["user"])


def test_nested_entries_of_signed_uploads_are_rows() -> None:
    rows = public_tables.read_changelog(CHANGELOG)
    assert [row["text"] for row in rows] == [
        "New release, with a manual.",
        "nested entry of two lines",
        "Fix.",
        "First release.",
    ]
    assert list(rows[0].values())[1:] == ["tool", "unstable", "low", "Ada Lovelace", 2019.0]
    assert list(rows[-1].values())[1:] == ["tool", "experimental", "medium", "Grace Hopper", 1996.0]
    assert public_tables.read_changelog("no changelog\n") == []


def test_rows_with_the_same_value_are_in_the_same_part() -> None:
    rows: list[public_tables.Row] = [{"text": f"text {i % 700}", "size": float(i % 2000)} for i in range(5000)]
    parts = public_tables.split(rows, "text", 0.2, seed=1)
    texts = {part: {row["text"] for row in parts[part]} for part in parts}
    assert sum(map(len, texts.values())) == 700
    assert all(100 < len(texts[part]) < 180 for part in ("dev", "test"))
    unique = {tuple(row.values()) for row in rows}
    assert sorted(tuple(row.values()) for part in parts.values() for row in part) == sorted(unique)
    assert public_tables.split(rows, "text", 0.2, seed=2) != parts


def test_texts_of_train_are_dropped_from_dev_and_test() -> None:
    rows: list[public_tables.Row] = [{"text": f"text {i % 50}", "source": f"source {i}"} for i in range(2000)]
    rows += [{"text": f"unique text {i}", "source": f"unique source {i}"} for i in range(2000)]
    parts = public_tables.split_descriptions(rows, seed=1)
    train_texts = {row["text"] for row in parts["train"]}
    for part in ("dev", "test"):
        assert len(parts[part]) > 60
        assert train_texts.isdisjoint(row["text"] for row in parts[part])


def test_users_of_dev_and_test_have_many_commits_and_are_not_in_train() -> None:
    rows: list[public_tables.Row] = [
        {"text": f"text {i}", "user": f"user {user}", "project": "tool", "time": f"{9999 - i}"}
        for user in range(200)
        for i in range(public_tables.MAX_COMMITS + 5 if user < 3 else user % 40)
    ]
    parts = public_tables.split_commits(rows, seed=1)
    users = {part: {row["user"] for row in parts[part]} for part in parts}
    assert users["train"].isdisjoint(users["dev"] | users["test"])
    assert users["dev"].isdisjoint(users["test"])
    for part in parts:
        streams = [[row["time"] for row in parts[part] if row["user"] == user] for user in sorted(users[part], key=str)]
        assert [time for stream in streams for time in stream] == [row["time"] for row in parts[part]]
        assert all(stream == sorted(stream) and len(stream) <= public_tables.MAX_COMMITS for stream in streams)
        assert part == "train" or min(map(len, streams)) >= public_tables.MIN_COMMITS
    lengths = {user: sum(row["user"] == user for row in rows) for user in sorted({str(row["user"]) for row in rows})}
    assert {user for user, length in lengths.items() if length < public_tables.MIN_COMMITS} <= users["train"]


def archive(files: dict[str, bytes]) -> bytes:
    """Return a tar archive of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as writer:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            writer.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def fake_run(*command: str, folder: Path | None = None) -> bytes:
    """Answer like apt and dpkg: 2,000 packages, each with a log and a changelog."""
    if command[:2] == ("apt-cache", "dumpavail"):
        records = PACKAGES.split("\n\n")[0]
        return "\n\n".join(records.replace("tool", f"tool{i}").replace("things", f"{i}") for i in range(2000)).encode()
    if command[0] == "apt-get":
        for name in command[2:]:
            (folder or Path()).joinpath(f"{name}_1.0_all.deb").touch()
        return b""
    name = Path(command[2]).name.split("_")[0]
    changelog = "".join(CHANGELOG.replace("release", f"release {name} {i}") for i in range(9))
    folder_name = f"./usr/share/doc/{name}"
    return archive(
        {
            f"{folder_name}/copyright": b"free",
            f"{folder_name}/changelog.gz": gzip.compress(LOG.encode()),
            f"{folder_name}/changelog.Debian.gz": gzip.compress(changelog.encode()),
            "./usr/bin/tool": b"",
        }
    )


def test_the_script_writes_tables_and_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_tables, "run", fake_run)
    assert public_tables.main([str(tmp_path)]) == 0
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    sizes = {
        name: {part: pq.read_table(tmp_path / name / f"{part}.parquet").num_rows for part in parts}
        for name, parts in manifest["rows"].items()
    }
    assert sizes == manifest["rows"]
    assert sum(sizes["descriptions"].values()) == 2000
    assert sizes["commits"] == {"train": 2 * len(public_tables.COMMIT_PACKAGES), "dev": 0, "test": 0}
    assert min(sizes["changelogs"].values()) > 0
    packages = {*public_tables.COMMIT_PACKAGES, *public_tables.CHANGELOG_PACKAGES}
    assert manifest["packages"] == sorted(f"{name}_1.0_all.deb" for name in packages)
    assert {path.name for path in (tmp_path / "copyright").iterdir()} == packages


@pytest.mark.parametrize(
    ("scripts", "message"),
    [
        ({}, "apt-cache: not found; this script requires the apt and dpkg of Debian"),
        ({"apt-cache": "echo"}, "apt-cache dumpavail: expected thousands of packages; run `apt-get update` first"),
        (
            {
                "apt-cache": "for i in $(seq 2000); do echo; echo Package: $i; done",
                "apt-get": "echo W: slow >&2; echo E: Unable to locate package x >&2; exit 100",
            },
            "apt-get download: E: Unable to locate package x; run `apt-get update`: this script needs the packages of "
            "Debian 12",
        ),
    ],
)
def test_a_missing_package_is_reported_in_one_line(
    scripts: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert public_tables.main([str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"{message}\n"
