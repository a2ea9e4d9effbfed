"""Build the tables of the experiments from public repositories.

    python -m experiments.datasets dbpedia14 --out DATA
    python -m experiments.datasets dbpedia14 --out DATA --from ../clones/DeepTextClustering

DATA/SET gets train.parquet, dev.parquet and test.parquet, split by a hash of each text, and manifest.json: the commits
of the sources, the number of records, and for each part the number of rows and their SHA-256. The contents of the
repositories belong to their authors; their licences apply.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

import corpora
from factorcell.errors import UserError, check_choice
from factorcell.io import files

from .reading import REPLACEMENT, Row, clean
from .repository import Repository, open_repository
from .sets import SETS, DataSet

MANIFEST = "manifest.json"
ADDRESS = "https://github.com/{}.git"
MIN_READABLE = 0.5  # minimum share of readable records; a repository with fewer is refused as the wrong one


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.datasets", description="Build the tables of a data set from public repositories."
    )
    parser.add_argument("set", metavar="SET", help=", ".join(SETS))
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the data sets; the set gets a folder in it"
    )
    parser.add_argument(
        "--from",
        dest="origins",
        nargs="+",
        metavar="ORIGIN",
        help="addresses or local clones, one for each repository of the set, in its order (default: github.com)",
    )
    parser.add_argument(
        "--at", metavar="COMMIT", help="commit of all repositories (default: the commits that the set was made for)"
    )
    arguments = parser.parse_args(argv)
    try:
        data_set = SETS[check_choice("data set", arguments.set, SETS)]
        clones = arguments.out / "clones"
        with ExitStack() as stack:
            sources = list(map(stack.enter_context, repositories(data_set, arguments.origins, arguments.at, clones)))
            build(arguments.set, data_set, sources, arguments.out / arguments.set)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; unfinished files were removed, fetched repositories remain", file=sys.stderr)
        return 130
    return 0


def repositories(
    data_set: DataSet, origins: Sequence[str] | None, commit: str | None, clones: Path
) -> Iterator[Repository]:
    places = origins or [ADDRESS.format(name) for name in data_set.sources]
    if len(places) != len(data_set.sources):
        names = " ".join(data_set.sources)
        raise UserError(f"--from: expected {len(data_set.sources)} repositories ({names}), got {len(places)}")
    for (name, default_commit), origin in zip(data_set.sources.items(), places, strict=True):
        yield open_repository(name, commit or default_commit, origin, clones, data_set.history)


def build(name: str, data_set: DataSet, sources: Sequence[Repository], folder: Path) -> None:
    """Write the parts and then the manifest, unless they exist already."""
    commits = {source.name: source.commit for source in sources}
    manifest = folder / MANIFEST
    if manifest.exists() and files.read_json(manifest).get("sources") == commits:
        print(f"{folder}: already built from the same commits; remove {MANIFEST} to build it again")
        return
    tally = dict.fromkeys(("read", "unreadable", "empty", "repeated"), 0)
    bar = tqdm(data_set.rows(sources), desc=name, unit=" rows", dynamic_ncols=True)
    table = to_table(data_set, clean_rows(bar, data_set, tally))
    if tally["read"] == 0 or tally["unreadable"] > (1 - MIN_READABLE) * tally["read"]:
        every = ", ".join(map(str, sources))
        raise UserError(
            f"{every}: {tally['unreadable']} of {tally['read']} records cannot be read; check the repositories"
        )
    manifest.unlink(missing_ok=True)
    parts = corpora.split(table, **data_set.split)
    facts_of = {part: write(folder / f"{part}.parquet", rows) for part, rows in parts.items()}
    content = {"set": name, "sources": commits, "records": tally, "parts": facts_of}
    files.write(manifest, (json.dumps(content, indent=2) + "\n").encode())
    for part, facts in facts_of.items():
        print(f"{folder / part}.parquet: {facts['rows']:,} texts")


def clean_rows(rows: Iterable[Row | None], data_set: DataSet, tally: dict[str, int]) -> Iterator[Row]:
    distinct = set[tuple[str | float, ...]]()
    for row in rows:
        tally["read"] += 1
        if row is None:
            tally["unreadable"] += 1
            continue
        cleaned = {key: clean(value) if isinstance(value, str) else value for key, value in row.items()}
        texts = [value for value in cleaned.values() if isinstance(value, str)]
        if not all(texts) or any(REPLACEMENT in text for text in texts):
            tally["empty"] += 1
            continue
        facts = tuple(cleaned[name] for name in ("text", *data_set.contexts))
        if facts in distinct:
            tally["repeated"] += 1
            continue
        distinct.add(facts)
        yield cleaned


def to_table(data_set: DataSet, rows: Iterable[Row]) -> pa.Table:
    """Convert rows to a table, in random order unless they are a history."""
    listed = list(rows)
    if not data_set.history:
        listed.sort(
            key=lambda row: (corpora.text_hash(str(row["text"])), [str(row[name]) for name in data_set.contexts])
        )
    kinds = [(name, pa.float64() if name in data_set.numbers else pa.string()) for name in data_set.contexts]
    return pa.Table.from_pylist(listed, schema=pa.schema([("text", pa.string()), *kinds]))


def write(path: Path, table: pa.Table) -> dict[str, Any]:
    """Write a part; return its number of rows, and their SHA-256 as JSON lines."""
    corpora.write_table(path, table)
    digest = hashlib.sha256()
    for batch in table.to_batches(10_000):
        for row in batch.to_pylist():
            digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return {"rows": len(table), "sha256": digest.hexdigest()}
