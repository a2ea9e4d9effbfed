"""Compare completion on a device, in Node and in Chromium, with Python: ranks, times, memory and sizes.

    make web && FACTORCELL_KERNEL=plain python -m benchmarks.device RUN TEST.parquet --users 50 --out device.jsonl

The texts of each user are replayed as in `factorcell replay`, on one thread in Python; on Linux, `taskset -c 0` limits
a browser to one core. A keystroke is one more letter of a typed text: the model reads it, searches, and the blend ranks
the suggestions. `agrees` is the share of prefixes for which the first suggestion is that of Python; `opened_bytes` and
`last_bytes` are the memory of WebAssembly before and after the replay. The run has no context columns except the user.
Prints a row of JSON for each place, and for the sizes of the files.
"""

import argparse
import gzip
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from factorcell.completion.blend import Blend, rank_of
from factorcell.completion.device import export_to_device
from factorcell.completion.online import Learner, User
from factorcell.completion.popularity import History, Popularity, Suggestion
from factorcell.completion.replay import SUGGESTION_COUNT, Row, Stream, read_streams, replay, summarise
from factorcell.nn.kernels import library
from factorcell.runs.run import Run
from tests.chromium import open_chromium

PACKAGE = Path(__file__).parents[1] / "web" / "dist"
# Plays calls of methods with an open completer: returns their results, and the milliseconds of each call.
PLAY = """async (completer, calls) => {
  const results = [], times = [];
  for (const [method, ...values] of calls) {
    const begin = performance.now();
    results.push((await completer[method](...values)) ?? null);
    times.push(performance.now() - begin);
  }
  return { results, times, memory: {} };
}"""
NODE = """
import { readFile } from "node:fs/promises";
const [folder, exported] = process.argv.slice(1);
const { DeviceCompleter, MemoryStorage } = await import(folder + "/index.js");
const wasm = await readFile(folder + "/factorcell.wasm");
const readExported = async (name) => new Uint8Array(await readFile(exported + "/" + name));
const completer = await DeviceCompleter.open(readExported, wasm, new MemoryStorage());
const memory = () => completer.native.exports.memory.buffer.byteLength;
let input = "";
for await (const part of process.stdin.setEncoding("utf8")) input += part;
const opened = memory(), played = await (%s)(completer, JSON.parse(input));
console.log(JSON.stringify({ ...played, memory: { opened_bytes: opened, last_bytes: memory() } }));
"""
BROWSER = """async (calls) => {
  const { open } = await import("/package/index.js");
  return (%s)(await open("/model/"), calls);
}"""


class TimedBlend:
    """A blend in Python, with the milliseconds and the suggestions of each keystroke."""

    def __init__(self, run: Run) -> None:
        self.blend = Blend(run, Popularity.from_run(run))
        self.times, self.suggestions = list[float](), list[list[str]]()

    def __call__(self, prefix: str, row: Mapping[str, Any], history: History, user: User | None) -> list[Suggestion]:
        before = self.blend.type_text(self.blend.begin(user), prefix[:-1])
        self.blend.suggest(before, SUGGESTION_COUNT)
        begin = time.perf_counter()
        suggestions = self.blend.suggest(self.blend.type_text(before, prefix), SUGGESTION_COUNT).suggestions
        self.times.append(1e3 * (time.perf_counter() - begin))
        self.suggestions.append([suggestion.text for suggestion in suggestions])
        return suggestions


class TimedLearner(Learner):
    """A learner in Python, with the milliseconds of each text."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.times = list[float]()

    def learn(self, *values: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = super().learn(*values, **options)
        self.times.append(1e3 * (time.perf_counter() - begin))
        return result


def calls_of(streams: Sequence[Stream], text_column: str, deadline: float) -> list[tuple[str, list[Any]]]:
    """Return the calls with which a device replays the streams, each with what it does."""
    calls, options = list[tuple[str, list[Any]]](), {"count": SUGGESTION_COUNT, "deadline": deadline}
    for stream in streams:
        calls.append(("delete", ["delete"]))
        for row, prefix in zip(stream.rows, stream.prefixes, strict=True):
            if prefix is not None:
                calls.append(("earlier letters", ["complete", prefix[:-1], options]))
                calls.append(("keystroke", ["complete", prefix, options]))
            calls.append(("learn", ["accept", row[text_column]]))
    return calls


def play_in_node(folder: Path, calls: Sequence[Any]) -> dict[str, Any]:
    """Let Node play the calls, without the threads of V8, with which Node sometimes does not end."""
    program = ["node", "--single-threaded", "--input-type=module", "-e", NODE % PLAY, str(PACKAGE), str(folder)]
    process = subprocess.run(program, input=json.dumps(calls), stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(process.stdout))


class QuietHandler(SimpleHTTPRequestHandler):
    """Sends files without logging the requests."""

    def log_message(self, *values: Any) -> None:
        pass


def play_in_browser(folder: Path, calls: Sequence[Any]) -> dict[str, Any]:
    """Let Chromium play the calls, in a worker of a page."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder.parent))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        with open_chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(0)
            page.goto(f"http://127.0.0.1:{server.server_port}/model/model.json")
            return dict(page.evaluate(BROWSER % PLAY, calls))
    finally:
        server.shutdown()


def percentiles(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return percentiles of milliseconds."""
    return {f"{kind}_p{p}_ms": float(np.percentile(of_kind, p)) for kind, of_kind in times.items() for p in (50, 95)}


def sizes(folder: Path) -> dict[str, Any]:
    """Return the bytes of the package and of an exported run, compressed as by a web server."""
    files = [*PACKAGE.glob("*.js"), *PACKAGE.glob("*.wasm"), *folder.iterdir()]
    compressed = {path: len(gzip.compress(path.read_bytes(), 9)) for path in files}
    package = sum(size for path, size in compressed.items() if path.parent == PACKAGE)
    exported = {path.name: (path.stat().st_size, compressed[path]) for path in sorted(folder.iterdir())}
    return {"where": "files", "package_gzip_bytes": package, "exported_bytes_and_gzip_bytes": exported}


def measure(run: Run, streams: Sequence[Stream], folder: Path, deadline: float) -> list[Row]:
    """Replay streams in Python and on devices; return a row of figures for each."""
    text_column, blend, learner = run.config.data.text, TimedBlend(run), TimedLearner(run)
    ranks = list(replay({"python": blend}, streams, text_column, learner))
    times = {"keystroke": blend.times, "learn": learner.times}
    rows: list[Row] = [{"where": f"python, {library.variant()}", **percentiles(times)}]
    calls = calls_of(streams, text_column, deadline)
    intended = [learned[1] for (kind, _), (_, learned) in pairwise(calls) if kind == "keystroke"]
    numbers = {kind: [n for n, (of_call, _) in enumerate(calls) if of_call == kind] for kind in times}
    for name, play in {"node": play_in_node, "chromium": play_in_browser}.items():
        played = play(folder, [call for _, call in calls])
        suggested = [[entry["text"] for entry in played["results"][n]] for n in numbers["keystroke"]]
        agrees = [texts[:1] == expected[:1] for texts, expected in zip(suggested, blend.suggestions, strict=True)]
        ranks += [
            {**row, "system": name, "rank": rank_of(text, texts)}
            for row, text, texts in zip(ranks[: len(intended)], intended, suggested, strict=True)
        ]
        of_device = {kind: [played["times"][n] for n in of_kind] for kind, of_kind in numbers.items()}
        rows.append({"where": name, **percentiles(of_device), "agrees": float(np.mean(agrees)), **played["memory"]})
    names = ("queries", "users", "mrr", "mrr_difference", "mrr_difference_low", "mrr_difference_high")
    summary = [{name: row[name] for name in names if name in row} for row in summarise(ranks) if row["by"] == "all"]
    return [row | ranked for row, ranked in zip(rows, summary, strict=True)]


def main() -> None:
    """Measure and print rows."""
    parser = argparse.ArgumentParser(description="Compare completion on a device with Python.")
    parser.add_argument("run", type=Path, help="run folder of a model that can be exported for a device")
    parser.add_argument("table", type=Path, help="table of texts of users")
    parser.add_argument("--users", type=int, default=100, help="number of users (default: 100)")
    parser.add_argument("--deadline", type=float, default=1e9, help="milliseconds of a search on a device")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.open(options.run)
    data = run.config.data
    streams = read_streams(options.table, run.config, user_column=str(data.user), time_column=data.time)
    with tempfile.TemporaryDirectory() as site:
        (Path(site) / "package").symlink_to(PACKAGE)
        folder = Path(site) / "model"
        export_to_device(run, folder)
        rows = [*measure(run, streams[: options.users], folder, options.deadline), sizes(folder)]
    lines = "".join(json.dumps({"run": str(options.run), "deadline": options.deadline, **row}) + "\n" for row in rows)
    print(lines, end="")
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(lines)


if __name__ == "__main__":
    main()
