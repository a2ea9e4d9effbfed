"""Completion in the first hour: train on a log with default options and a few minutes, and replay unseen users.

    python experiments/first_hour.py DATA OUT > table.md

DATA is a folder of data sets. Nothing but `train` prepares a run; the systems are most popular completion, the history
of the user, both (`known`), the neural model for the unknown user and for the learned user, an unadapted model of the
same minutes, and what `complete` and `serve` suggest (`blend`). Trainings and replays that exist in OUT are not
repeated. Intervals are 95 % bootstrap intervals over users, paired between systems and trainings.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import corpora
from factorcell import bootstrap
from factorcell.completion.online import Learner, User
from factorcell.completion.popularity import History, Suggestion
from factorcell.completion.replay import System, open_systems, read_streams, replay
from factorcell.data.text_folds import same_text
from factorcell.io import files
from factorcell.runs.run import Run
from factorcell.training.fit import fit
from made_logs import LOGS
from replays import nats_of_completed_texts

QUERIES = 1200  # about the number of texts of the test users that are completed
ROWS_PER_USER = 40
SYSTEMS = ("mpc", "history", "known", "plain", "online", "blend", "unadapted")
BASIC_SYSTEMS = ("mpc", "history", "known", "online")  # the blend should not be below the best of them

Row = dict[str, Any]
Floats = NDArray[np.float64]


def write_tables(name: str, data: Path, folder: Path) -> dict[str, Path]:
    """Write the tables of a log once; return their paths."""
    missing = [part for part in corpora.PARTS if not (folder / f"{part}.parquet").exists()]
    tables = LOGS[name](data) if missing else {}
    return {
        part: corpora.create_once(folder / f"{part}.parquet", partial(tables.__getitem__, part))
        for part in corpora.PARTS
    }


def train(tables: dict[str, Path], folder: Path, minutes: float, seed: int) -> None:
    """Train the run and the unadapted run of a log, unless they exist."""
    models: dict[str, Row] = {"adapted": {}, "unadapted": {"model": "unadapted"}}
    for name, model in models.items():
        if (folder / name / "training.json").exists():
            continue
        fit(
            tables["train"],
            dev=tables["dev"],
            out=folder / name,
            minutes=minutes,
            resume=True,
            user="user",
            time="time",
            tokenizer="char",
            lowercase=True,
            seed=seed,
            min_users=3,
            **model,
        )


def replay_users(tables: dict[str, Path], folder: Path) -> list[Row]:
    """Replay the test users with all systems, and return a row for each system and completed text."""
    path = folder / "rows.jsonl"
    rows = files.read_rows(path) if path.exists() else []
    if {row["system"] for row in rows} == set(SYSTEMS):
        return rows
    run, unadapted = Run.open(folder / "adapted"), Run.open(folder / "unadapted")
    read = partial(read_streams, tables["test"], run.config, max_rows_per_user=ROWS_PER_USER)
    completed_texts = sum(prefix is not None for stream in read() for prefix in stream.prefixes)
    streams = read(every=max(1, round(completed_texts / QUERIES)))
    systems = open_systems(run, SYSTEMS[:-1], unknown="group")
    systems["unadapted"] = open_systems(unadapted, ["plain"], unknown="group")["plain"]
    systems["blend"], first_texts = with_first_texts(systems["blend"])
    nats = {
        "plain": nats_of_completed_texts(run, streams, unknown="group", learns=False),
        "online": nats_of_completed_texts(run, streams, unknown="group"),
        "unadapted": nats_of_completed_texts(unadapted, streams, unknown="group"),
    }
    rows = []
    for row in replay(systems, streams, "text", Learner(run, unknown="group")):
        no_nats: tuple[None, None] = (None, None)
        row["nats"], row["targets"] = nats.get(row["system"], {}).get((row["user"], row["position"]), no_nats)
        rows.append({**row, "first": first_texts[-1]} if row["system"] == "blend" else row)
    files.write_rows(path, rows)
    return rows


def with_first_texts(system: System) -> tuple[System, list[str | None]]:
    """Return a system, and a list to which each call of it appends the first suggestion, or None."""
    first_texts = list[str | None]()

    def suggest(prefix: str, row: Mapping[str, Any], history: History, user: User | None) -> Sequence[Suggestion]:
        suggestions = system(prefix, row, history, user)
        first_texts.append(suggestions[0].text if suggestions else None)
        return suggestions

    return suggest, first_texts


def entered_texts(tables: dict[str, Path], lowercase: bool = True) -> set[str]:
    """Return all texts of training, in canonical form."""
    texts = corpora.read(tables["train"])["text"].to_pylist()
    return {same_text(text.lower() if lowercase else text) for text in texts}


def measure(rows: Sequence[Row], entered: set[str]) -> tuple[Row, dict[str, Floats]]:
    """Return figures of a replay, and for each system the sums per user (U, 4): reciprocal ranks, texts, nats, targets.

    Systems without a language model have no nats.
    """
    users = sorted({row["user"] for row in rows})
    indices = {user: index for index, user in enumerate(users)}
    sums = {name: np.zeros((len(users), 4)) for name in SYSTEMS}
    first, invented = 0, 0
    for row in rows:
        reciprocal_rank = 1 / row["rank"] if row["rank"] else 0.0
        sums[row["system"]][indices[row["user"]]] += reciprocal_rank, 1, row["nats"] or 0.0, row["targets"] or 0
        if row["system"] == "blend" and row["first"] is not None:
            first += 1
            invented += row["rank"] != 1 and row["first"] not in entered
    figures: Row = {
        "users": len(users),
        "queries": int(sums["blend"][:, 1].sum()),
        "invented": invented / max(1, first),
    }
    for name, values in sums.items():
        totals = values.sum(axis=0)
        figures[name] = float(totals[0] / totals[1])
    best = max(BASIC_SYSTEMS, key=figures.__getitem__)
    figures["best"] = best
    figures["blend - best"] = difference(sums["blend"], sums[best])
    figures["online - unadapted"] = difference(sums["online"], sums["unadapted"])
    figures["perplexity"] = perplexity_change(sums["online"], sums["unadapted"])
    figures["perplexity, plain"] = perplexity_change(sums["plain"], sums["unadapted"])
    return figures, sums


def difference(sums: Floats, others: Floats) -> str:
    """Return the difference of two mean reciprocal ranks with its interval."""
    totals = bootstrap.resampled_sums(np.concatenate([sums, others], axis=1))
    points = totals[:, 0] / totals[:, 1] - totals[:, 4] / totals[:, 5]
    return bootstrap.percentile_interval(points, len(sums)).to_text(".3f")


def perplexity_change(sums: Floats, others: Floats) -> str:
    """Return by how many percent the perplexity differs from that of another system, with its interval."""
    totals = bootstrap.resampled_sums(np.concatenate([sums, others], axis=1))
    points = np.exp(totals[:, 2] / totals[:, 3] - totals[:, 6] / totals[:, 7]) - 1
    return bootstrap.percentile_interval(100 * points, len(sums)).to_text(".1f")


def main() -> None:
    """Measure the logs and print a row for each of them and for each number of minutes."""
    parser = argparse.ArgumentParser(description="Measure completion after short trainings.")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--logs", nargs="+", choices=LOGS, default=list(LOGS))
    parser.add_argument("--minutes", nargs="+", type=float, default=[1.0, 3.0, 10.0])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = list[Row]()
    for name in arguments.logs:
        tables = write_tables(name, arguments.data, arguments.out / name)
        entered, shortest = entered_texts(tables), None
        for minutes in arguments.minutes:
            folder = arguments.out / name / f"minutes-{minutes:g}-seed-{arguments.seed}"
            train(tables, folder, minutes, arguments.seed)
            figures, sums = measure(replay_users(tables, folder), entered)
            shortest = shortest or sums
            figures |= {"log": name, "minutes": minutes, "change": difference(sums["blend"], shortest["blend"])}
            sys.stderr.write(json.dumps(figures) + "\n")
            results.append(figures)
    sys.stdout.write(table(results) + "\n")


def table(results: Sequence[Row]) -> str:
    """Return a Markdown table of the figures of all logs and trainings."""
    columns = {"log": "log", "minutes": "minutes", **{name: name for name in SYSTEMS}}
    columns["blend - best"] = "blend, minus the best of mpc, history, known and online"
    columns["change"] = "blend, minus 1 minute"
    columns |= {"online - unadapted": "online, minus unadapted", "invented": "wrong inventions first"}
    columns["perplexity"] = "perplexity of online, against unadapted, %"
    columns["perplexity, plain"] = "of plain, against unadapted, %"
    lines = [f"| {' | '.join(columns.values())} |", "|" + " --: |" * len(columns)]
    for row in results:
        cells = {name: f"{row[name]:.3f}" for name in SYSTEMS} | {"invented": f"{row['invented']:.1%}"}
        lines.append(f"| {' | '.join(str(cells.get(name, row[name])) for name in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
