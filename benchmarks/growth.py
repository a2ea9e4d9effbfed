"""Time and memory against the sizes of a model and of a store of users, with the exponent of each curve.

    python -m benchmarks.growth --docs docs/results

Each size of `AXES` is a point, whose two stages run in separate processes with one thread: training steps, which save
the run (and fill the store of users), and then the use of the opened run. Rows are appended as JSON lines; a point that
has a row is not measured again. A time is the shortest of several repetitions, in seconds of processor time, which
other programs affect little; for the store, it is the elapsed time, because a write waits for the disk.
Memory is the peak of a process (VmHWM) minus its memory after the imports. With --docs, the script draws the charts and
writes the table of docs/results/speed.md from all rows. The exponent of a curve is the slope of log(value) against
log(size) over the upper half of its sizes, by least squares.

The options are those that the rules choose for a million targets, 6 passes and many texts per context. For the
vocabulary: words, e 150, d 200, rank 12. For the other sizes: 95 characters, e 50, d 300, rank 50, layer normalization.
A step reads 1,000 tokens; a scored text has 20 words or 40 characters; a completion begins without cached weights, and
searches until the model has read 1,000 hypotheses, because a model with random weights has no typical number.
"""

import argparse
import json
import random
import re
import sqlite3
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from benchmarks import speed
from benchmarks.processes import Figures, shortest
from benchmarks.service.report import about
from factorcell.completion.completer import Completer
from factorcell.completion.search import SearchRequest
from factorcell.config import CharacterOptions, Config
from factorcell.data.corpus import Corpus
from factorcell.data.tokenizers.tokenizer import SPECIAL_TOKENS, CharacterTokenizer
from factorcell.io import files
from factorcell.io.progress import progress_bar
from factorcell.nn.kernels import library
from factorcell.reports import charts
from factorcell.runs.run import Run
from factorcell.service.engine import Service
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from factorcell.training import rules
from factorcell.training.trainer import Trainer

Row = dict[str, Any]
AXES: dict[str, tuple[int, ...]] = {
    "vocabulary": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "hidden size": (64, 128, 256, 512, 1024, 2048),
    "rank": (1, 2, 4, 8, 16, 32, 64, 128),
    "contexts": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "users": (100, 1_000, 10_000, 100_000, 1_000_000),
}
TIMES = ("training step", "scoring a text", "completion", "lookup of a user", "learning a text")
BYTES = ("memory of training", "memory of serving", "files")
SCALES = ((1e3, "ms"), (1e-6, "MB"))  # of seconds and of bytes
OPTIONS = {"hidden size": "hidden_size", "rank": "rank"}  # the options of the axes that are options
CONTEXTS, TARGETS, PASSES, TEXTS_PER_CONTEXT = 1_000, 1_000_000, 6.0, 1_000.0
CHARACTERS = f" {string.ascii_lowercase}{string.ascii_uppercase}{string.digits}{string.punctuation}"
WORD_TEXT = " ".join(f"w{number}" for number in range(3, 23))
TEXT = "how to bake sourdough bread with walnuts"
HYPOTHESES, USER_TEXTS, BATCH = 1_000, 10, 20  # BATCH: users per measurement
MAX_SECONDS, MAX_REPETITIONS, MIN_REPETITIONS = 4.0, 30, 3
STORE, COLUMN = "users.db", "context"
ROWS = Path(__file__).parent.parent / "experiments" / "results" / "growth.jsonl"


def corpus_of(axis: str, size: int) -> Corpus:
    """Return 500 random texts with the vocabulary and the number of contexts of a point."""
    contexts = size if axis == "contexts" else CONTEXTS
    if axis == "vocabulary":
        return speed.texts(contexts, 500, 20, size)
    tokenizer = CharacterTokenizer(CharacterOptions(), (*SPECIAL_TOKENS, *CHARACTERS))
    return replace(speed.texts(contexts, 500, 40, len(tokenizer)), tokenizer=tokenizer)


def config_of(axis: str, size: int, corpus: Corpus) -> Config:
    """Return the options that the rules choose, with the option of the axis changed."""
    is_char, vocabulary = axis != "vocabulary", len(corpus.tokenizer)
    facts = rules.TableFacts(TARGETS, vocabulary, is_char, CONTEXTS, TEXTS_PER_CONTEXT, has_users=is_char)
    options = rules.default_options(facts, PASSES)
    options |= {"tokenizer": "char", "user": COLUMN} if is_char else {"tokenizer": "word", "context": (COLUMN,)}
    options |= {OPTIONS[axis]: size} if axis in OPTIONS else {}
    return Config.of(**{**options, "epochs": 1e3, "precision": "float32"})


def measure(works: Mapping[str, Callable[[], object]], clock: Callable[[], float] = time.process_time) -> Figures:
    """Return the shortest seconds of each work; fast works are repeated more often."""
    figures: Figures = {}
    for name, work in works.items():
        affordable = round(MAX_SECONDS / shortest({name: work}, 1, clock)[name])
        figures |= shortest({name: work}, min(MAX_REPETITIONS, max(MIN_REPETITIONS, affordable)), clock)
    return figures


def train(axis: str, size: int, folder: Path) -> Figures:
    """Measure training steps, save the run and, on the axis of users, fill a store."""
    corpus = corpus_of(axis, size)
    run = Run.create(folder / "run", config_of(axis, size, corpus), corpus.tokenizer, corpus.schema)
    trainer = Trainer(run, corpus, corpus.select(np.arange(2)))
    batches = trainer.batches()
    figures = {} if axis == "users" else measure({"training step": lambda: trainer.step(next(batches))})
    run.save_weights({})
    if axis == "users":
        fill(folder / STORE, ServedModel(Run.open(run.folder)), size)
        return {"files": float(sum(path.stat().st_size for path in folder.glob(f"{STORE}*")))}
    return {**figures, "files": float(sum(path.stat().st_size for path in run.folder.iterdir()))}


def user_id(number: int) -> str:
    """Return the id of a user; the order of ids is random."""
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"


def fill(path: Path, model: ServedModel, users: int) -> None:
    """Save `users` users with the texts of user 0, without a write to the disk for each."""
    service = Service(model, open_store(f"sqlite:///{path}"))
    for number in range(USER_TEXTS):
        service.accept(user_id(0), f"{TEXT[:25]} {number}", key=str(number))
    record = service.store.read(user_id(0))
    service.close()
    assert record is not None
    assert len(record.texts) == USER_TEXTS
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous=OFF")
    records = (msgspec.structs.replace(record, user=user_id(number)) for number in range(1, users))
    rows = ((user.user.encode(), user.version, user.oldest_time, user.to_bytes()) for user in records)
    connection.executemany("INSERT INTO factorcell_users (user_id, version, oldest, value) VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def serve(axis: str, size: int, folder: Path) -> Figures:
    """Open the run, and measure scoring and completing, or requests of users of the store."""
    run, context = Run.open(folder / "run"), {COLUMN: "c3"}
    text = WORD_TEXT if axis == "vocabulary" else TEXT
    if axis == "users":
        return serve_users(run, folder / STORE, size)
    works: dict[str, Callable[[], object]] = {"scoring a text": lambda: run.score_rows([{"text": text, **context}])}
    if axis != "vocabulary":  # a model of words does not complete texts
        completer = Completer(run)

        def complete() -> None:
            typed = completer.type_text(completer.begin(None, context), text[:5])
            request = SearchRequest(typed.prefix_state, 100, 100, max_expanded=HYPOTHESES)
            result = completer.engine.search(request)
            assert result.expanded_count == HYPOTHESES

        works["completion"] = complete
    return measure(works)


def serve_users(run: Run, path: Path, users: int) -> Figures:
    """Measure the lookup of users and the learning of one text; consecutive users are far apart in the file."""
    service, numbers = Service(ServedModel(run), open_store(f"sqlite:///{path}")), count(1)

    def for_batch(call: Callable[[str], object]) -> Callable[[], object]:
        return lambda: [call(user_id(next(numbers) * 7919 % users)) for _ in range(BATCH)]

    calls = {"lookup of a user": service.show, "learning a text": lambda user: service.accept(user, TEXT)}
    figures = measure({name: for_batch(call) for name, call in calls.items()}, time.perf_counter)
    service.close()
    return {name: seconds / BATCH for name, seconds in figures.items()}


STAGES: dict[str, Callable[[str, int, Path], Figures]] = {"training": train, "serving": serve}


def run_stage(stage: str, axis: str, size: int, folder: Path) -> Figures:
    """Return the figures of a stage, and the peak memory of this process without its memory before the stage."""
    torch.set_num_threads(1)
    before = status_bytes("VmRSS")
    figures = STAGES[stage](axis, size, folder)
    return {**figures, f"memory of {stage}": status_bytes("VmHWM") - before}


def status_bytes(entry: str) -> float:
    """Return an entry of the status of this process in bytes."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(re.findall(rf"^{entry}:\s+(\d+) kB$", text, re.MULTILINE)[0]) * 1024


def measure_point(axis: str, size: int) -> Row:
    """Return the figures of a point, each stage from a new process."""
    row: Row = {"axis": axis, "size": size, **about(), "kernel": library.variant(), "figures": {}}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for stage in STAGES:
            command = [sys.executable, "-m", "benchmarks.growth", "--stage", stage, axis, str(size), folder]
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            row["figures"] |= json.loads(result.stdout)
    return {**row, "seconds": round(time.perf_counter() - began, 1)}


def curves(rows: Sequence[Row], axis: str) -> dict[str, dict[int, float]]:
    """Return, for each figure of an axis, its value at each size."""
    points = sorted((row for row in rows if row["axis"] == axis), key=lambda row: int(row["size"]))
    omitted = {"memory of training"} if axis == "users" else set[str]()  # of the process that fills the store
    names = [name for name in (*TIMES, *BYTES) if points and name in points[0]["figures"].keys() - omitted]
    return {name: {int(row["size"]): float(row["figures"][name]) for row in points} for name in names}


def exponent(curve: Mapping[int, float]) -> float:
    """Return the slope of log(value) against log(size) over the upper half of the sizes."""
    sizes = sorted(curve)[len(curve) // 2 :]
    slope, _ = np.polyfit(np.log(sizes), np.log([curve[size] for size in sizes]), 1)
    return float(slope)


def table(rows: Sequence[Row]) -> str:
    """Return a table of all curves: the values at the smallest and the largest size, and the exponent."""
    lines = ["| size | figure | smallest size | largest size | exponent |", "|---|---|---:|---:|---:|"]
    for axis in AXES:
        for name, curve in curves(rows, axis).items():
            first, last = min(curve), max(curve)
            figures = (format_figure(name, curve[size]) for size in (first, last))
            cells = f"{axis}, {first:,} to {last:,}", name, *figures
            lines.append(f"| {' | '.join(cells)} | {round(exponent(curve), 2) + 0.0:.2f} |")
    return "\n".join(lines) + "\n"


def format_figure(name: str, value: float) -> str:
    """Format seconds in milliseconds, or bytes in MB, with at least three significant digits."""
    scale, unit = SCALES[name in BYTES]
    return f"{scale * value:,.0f} {unit}" if scale * value >= 100 else f"{scale * value:.3g} {unit}"


@charts.styled()
def chart(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draw a panel for each axis with the curves of `names`, both scales logarithmic."""
    scale, unit = SCALES[names == BYTES]
    figure, colours = Figure(figsize=(9.9, 6.2)), charts.colours(names)
    figure.add_artist(Rectangle((0, 0), 1, 1, transform=figure.transFigure, color="white", zorder=-2))
    for number, axis in enumerate(AXES, 1):
        axes = figure.add_subplot(2, 3, number)
        for name, curve in curves(rows, axis).items():
            if name in names:
                values = [scale * value for value in curve.values()]
                axes.plot(list(curve), values, "o-", color=colours[name], ms=3.5, lw=1.2, label=name)
        axes.set(xscale="log", yscale="log", title=unit, xlabel=axis)
        axes.grid(axis="both")
        for scale_axis in (axes.xaxis, axes.yaxis):
            charts.round_ticks(scale_axis, is_log=True)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    charts.add_legend(figure)
    return figure


def write_docs(docs: Path, rows: Sequence[Row]) -> None:
    """Write the charts, and the table between its marks in speed.md."""
    for name, names in (("time", TIMES), ("memory", BYTES)):
        files.write(docs / f"growth-{name}.svg", charts.svg(chart(rows, names), name))
    page, content = docs / "speed.md", f"<!-- growth -->\n\n{table(rows)}\n<!-- end of growth -->"
    files.write(page, re.sub("<!-- growth -->.*<!-- end of growth -->", content, page.read_text("utf-8"), flags=re.S))


def main(argv: Sequence[str]) -> None:
    """Measure the points that have no row, print the table and write the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROWS, help="file that JSON lines are appended to")
    parser.add_argument("--docs", type=Path, help="folder of the pages; the charts and the table are replaced")
    parser.add_argument("--stage", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        stage, axis, size, folder = arguments.stage
        print(json.dumps(run_stage(stage, axis, int(size), Path(folder))))
        return
    rows = files.read_rows(arguments.out) if arguments.out.exists() else []
    finished = {(row["axis"], row["size"]) for row in rows}
    points = [(axis, size) for axis, sizes in AXES.items() for size in sizes if (axis, size) not in finished]
    random.Random(0).shuffle(points)  # the estimate of the remaining time then holds from the start
    for axis, size in progress_bar(points, desc="measuring", unit="points"):
        rows.append(measure_point(axis, size))
        files.append_row(arguments.out, rows[-1])
    print(table(rows))
    if arguments.docs:
        write_docs(arguments.docs, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
