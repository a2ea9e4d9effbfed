"""Build three tables of texts with context from packages that anybody can install.

    python examples/public_tables.py OUT

The script needs pyarrow and Debian's apt and dpkg; the packages are those of Debian 12.
It downloads about 70 MB with `apt-get download`, installs nothing and needs no root.
OUT gets a folder per table with `train.parquet`, `dev.parquet` and `test.parquet`, the downloaded packages, their
copyright files, and `manifest.json` with sources, licences, versions of packages and numbers of rows.

- `descriptions`: the one-line description of each package that apt knows.
  Context: `source` package, `section`, `maintainer`, `priority`, and `size`, the number of kilobytes when installed.
  All packages of a source are in one part, and no text of dev or test is in train.
- `commits`: subjects of commits to free software, from changelogs in the format of `git log`.
  Context: `user` (a digest of the author's name), `project`, `time` (UTC).
  The rows are sorted by user and time; a user of dev or test is not in train and has at least 20 commits.
  As in query logs, users repeat their own texts and those of others.
- `changelogs`: entries of the changelogs of Debian packages.
  Context: `package`, `distribution`, `urgency`, `maintainer`, `year`.
  No text is in two parts.

Rows that repeat another row are removed. The same packages and the same seed give the same tables.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, str | float]
Parts = dict[str, list[Row]]  # train, dev, test

# Packages whose changelog is the output of `git log`.
COMMIT_PACKAGES = """
    brasero-common fontconfig-config geany-common libgnutls28-dev libharfbuzz0b libpixman-1-0 libvte-2.91-common
    libx11-data openssh-client rhythmbox-data xfce4-terminal xserver-xorg-core xserver-xorg-input-synaptics
    xserver-xorg-video-intel xserver-xorg-video-nouveau xserver-xorg-video-radeon
""".split()
# Small packages with long Debian changelogs.
CHANGELOG_PACKAGES = """
    adduser apt apt-file apt-listchanges aptitude-common base-files base-passwd bash-completion bind9-host
    binutils-common bluez blends-common console-data cryptsetup-bin cups-common debhelper debian-edu-config
    debian-goodies debianutils debmake debootstrap developers-reference devscripts dh-python discover discover-data
    dpkg-dev exim4-config ffmpeg gcc-12-base gdm3 git-buildpackage gnupg grub-common imagemagick-6-common
    initramfs-tools-core iproute2 libc-bin lintian linux-libc-dev live-build llvm-14-tools mdadm menu mesa-common-dev
    nano network-manager os-prober pbuilder piuparts po-debconf postfix postgresql-common python3.11-minimal reportbug
    rsyslog samba-common sbuild spamassassin systemd sysvinit-utils tasksel ubuntu-dev-tools util-linux vim-common
    wpasupplicant x11-common x11-utils xen-utils-common
""".split()
LICENCES = {
    "descriptions": "the licence of the packaging of each package; all packages are in Debian main, which is free",
    "commits": "the licence of each project (MIT, BSD, GPL or LGPL): copyright/PACKAGE",
    "changelogs": "the licence of the packaging of each package: copyright/PACKAGE",
}

MIN_COMMITS = 20  # of a user of dev or test
MAX_COMMITS = 1000  # of any user: otherwise one user would dominate a part
MAX_CHARACTERS = 100  # of a commit subject
MAX_ENTRIES = 2000  # of the changelog of a package, the newest ones

COMMIT = re.compile(r"^commit [0-9a-f]{40}\nAuthor: +(.+?) +<.*\nDate: +(.+)\n\n +(.+)$", re.MULTILINE)
UPLOAD = re.compile(r"^(\S+) \([^()\s]+\) ([^\s;]+)[^;\n]*;.*?\burgency=(\w+)", re.MULTILINE | re.IGNORECASE)
SIGNATURE = re.compile(r"^ -- (.+?) +<.*?> .*?\b((?:19|20)\d\d)\b", re.MULTILINE)
ENTRY = re.compile(r"^ +[*+-] +(.+(?:\n {3,}+(?![*+-] |\[ ).+)*)", re.MULTILINE)


class BuildError(Exception):
    """A table that cannot be built; the message says what to do."""


def clean(text: str) -> str:
    """Return a text in NFC, in which single spaces replace white space and unprintable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in unicodedata.normalize("NFC", text)).split())


def read_descriptions(package_list: str) -> list[Row]:
    """Return a row per package of the output of `apt-cache dumpavail`."""
    rows: list[Row] = []
    for record in package_list.split("\n\n"):
        fields: dict[str, str] = dict(re.findall(r"^([A-Za-z0-9-]+): (.+)$", record, re.MULTILINE))
        if {"Package", "Section", "Maintainer", "Installed-Size", "Description"} <= fields.keys():
            row: Row = {
                "text": clean(fields["Description"]),
                "source": fields.get("Source", fields["Package"]).split()[0],
                "section": fields["Section"].split("/")[-1],
                "maintainer": clean(fields["Maintainer"].split("<")[0]),
                "priority": fields.get("Priority", "optional"),
                "size": float(fields["Installed-Size"]),
            }
            rows.append(row)
    return rows


def read_commits(project: str, log: str) -> list[Row]:
    """Return a row per commit of the output of `git log`, except merges."""
    rows: list[Row] = []
    for author, date, subject in COMMIT.findall(log):
        time = datetime.strptime(date, "%a %b %d %H:%M:%S %Y %z").astimezone(UTC)
        user = hashlib.sha256(clean(author).lower().encode()).hexdigest()[:12]
        text = clean(subject)[:MAX_CHARACTERS].strip()
        rows.append({"text": text, "user": user, "project": project, "time": f"{time:%Y-%m-%dT%H:%M:%SZ}"})
    return rows


def read_changelog(changelog: str) -> list[Row]:
    """Return a row per entry of a Debian changelog, the newest first; nested entries are rows of their own."""
    rows: list[Row] = []
    uploads = list(UPLOAD.finditer(changelog))
    ends = [*(upload.start() for upload in uploads), len(changelog)][1:]
    for upload, end in zip(uploads, ends, strict=True):
        signature = SIGNATURE.search(changelog, upload.end(), end)
        if not signature:
            continue
        context: Row = {
            "package": upload[1],
            "distribution": upload[2].lower(),
            "urgency": upload[3].lower(),
            "maintainer": clean(signature[1]),
            "year": float(signature[2]),
        }
        entries = ENTRY.findall(changelog, upload.end(), signature.start())
        rows += [{"text": clean(entry), **context} for entry in entries]
    return rows[:MAX_ENTRIES]


def split(rows: Iterable[Row], column: str, share: float, seed: int) -> Parts:
    """Remove repeated rows and split the others; rows with the same value in the column are in the same part."""
    parts: Parts = {"train": [], "dev": [], "test": []}
    for row in {tuple(row.values()): row for row in rows}.values():
        digest = hashlib.sha256(f"{seed}:{row[column]}".encode()).hexdigest()
        number = int(digest[:12], 16) / 16**12  # from 0 to 1
        parts["dev" if number < share else "test" if number < 2 * share else "train"].append(row)
    return parts


def split_descriptions(rows: list[Row], seed: int) -> Parts:
    """Split by source package, and drop rows of dev and test whose text is in train."""
    parts = split(rows, "source", 0.05, seed)
    train_texts = {row["text"] for row in parts["train"]}
    for part in ("dev", "test"):
        parts[part] = [row for row in parts[part] if row["text"] not in train_texts]
    return parts


def split_commits(rows: list[Row], seed: int) -> Parts:
    """Split by user, sort by user and time, and cut long streams; users with few commits are in train."""
    parts = split(rows, "user", 0.15, seed)
    counts = Counter(row["user"] for part_rows in parts.values() for row in part_rows)
    for part in ("dev", "test"):
        parts["train"] += [row for row in parts[part] if counts[row["user"]] < MIN_COMMITS]
        parts[part] = [row for row in parts[part] if counts[row["user"]] >= MIN_COMMITS]
    for part, part_rows in parts.items():
        streams = groupby(sorted(part_rows, key=itemgetter("user", "time", "text")), key=itemgetter("user"))
        parts[part] = [row for _, stream in streams for row in islice(stream, MAX_COMMITS)]
    return parts


def run(*command: str, folder: Path | None = None) -> bytes:
    """Return the output of a command; raise a `BuildError` with its error message if it fails."""
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, env=environment, check=False)
    except FileNotFoundError:
        raise BuildError(f"{command[0]}: not found; this script requires the apt and dpkg of Debian") from None
    if result.returncode:
        errors = [line for line in result.stderr.decode(errors="replace").splitlines() if not line.startswith("W:")]
        raise BuildError(f"{' '.join(command[:2])}: {'; '.join(errors)}")
    return result.stdout


def read_package_list() -> str:
    """Return the records of all packages that apt knows."""
    records = run("apt-cache", "dumpavail").decode(errors="replace")
    if records.count("\nPackage: ") < 1000:
        raise BuildError("apt-cache dumpavail: expected thousands of packages; run `apt-get update` first")
    return records


def download(packages: Iterable[str], folder: Path) -> dict[str, Path]:
    """Download the packages that the folder lacks, and return the path of each package."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in packages if not list(folder.glob(f"{name}_*.deb"))]
    if missing:
        try:
            run("apt-get", "download", *missing, folder=folder)
        except BuildError as error:
            raise BuildError(f"{error}; run `apt-get update`: this script needs the packages of Debian 12") from None
    return {name: sorted(folder.glob(f"{name}_*.deb"))[-1] for name in packages}


def read_changelogs(packages: Iterable[str], out: Path) -> Iterator[tuple[str, str]]:
    """Yield each package with each of its changelogs, and store its copyright file."""
    (out / "copyright").mkdir(parents=True, exist_ok=True)
    for name, path in download(packages, out / "packages").items():
        with tarfile.open(fileobj=io.BytesIO(run("dpkg-deb", "--fsys-tarfile", str(path)))) as archive:
            for member in archive:
                folder, _, document = member.name.rpartition("/")
                if folder != f"./usr/share/doc/{name}" or not member.isfile():
                    continue
                data = archive.extractfile(member).read()  # type: ignore[union-attr]  # a file has contents
                if document == "copyright":
                    (out / "copyright" / name).write_bytes(data)
                elif document.startswith("changelog") and document.endswith(".gz"):
                    yield name, gzip.decompress(data).decode(errors="replace")


def build_tables(out: Path, seed: int) -> dict[str, Parts]:
    """Return the parts of each table."""
    descriptions = read_descriptions(read_package_list())
    commits = [row for name, log in read_changelogs(COMMIT_PACKAGES, out) for row in read_commits(name, log)]
    entries = [row for _, changelog in read_changelogs(CHANGELOG_PACKAGES, out) for row in read_changelog(changelog)]
    return {
        "descriptions": split_descriptions(descriptions, seed),
        "commits": split_commits(commits, seed),
        "changelogs": split(entries, "text", 0.05, seed),
    }


def main(arguments: list[str] | None = None) -> int:
    """Build the tables and their manifest."""
    parser = argparse.ArgumentParser(description="Build three tables of texts with context from Debian packages.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the tables")
    parser.add_argument("--seed", type=int, default=1, help="seed of the split into train, dev and test (default: 1)")
    options = parser.parse_args(arguments)
    try:
        tables = build_tables(options.out, options.seed)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    rows = {name: {part: len(rows) for part, rows in parts.items()} for name, parts in tables.items()}
    for name, parts in tables.items():
        (options.out / name).mkdir(exist_ok=True)
        for part in parts:
            pq.write_table(pa.Table.from_pylist(parts[part]), options.out / name / f"{part}.parquet")
        print(f"{name}: {', '.join(f'{size:,} {part}' for part, size in rows[name].items())}")
    packages = sorted(path.name for path in (options.out / "packages").iterdir())
    manifest = {"seed": options.seed, "rows": rows, "licences": LICENCES, "packages": packages}
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
