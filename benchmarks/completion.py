"""Complete real texts with the published beam search, the plain exact search and the compiled ones.

    python benchmarks/completion.py runs/queries queries.parquet --user user --prefixes 100 --out completion.jsonl

Every prefix (at least 2 characters typed, 1 left; drawn by a hash of user, text and position) is completed by all
contenders in random order on one thread. A figure is a percentile over the prefixes of the thread's processor time, so
other work on the machine matters less; throughput is wall-clock. The first request of each contender, with cold
caches, is not counted. Prints tables, and writes one JSON object per figure.
"""

import argparse
import hashlib
import heapq
import json
import math
import os
import platform
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from factorcell.completion.compiled import new_engine
from factorcell.completion.completer import Completer
from factorcell.completion.online import Learner, User
from factorcell.completion.popularity import History
from factorcell.completion.search import Completion, PlainEngine, PrefixState, SearchRequest, SearchResult
from factorcell.data.tables.tables import open_table
from factorcell.nn.kernels import library
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.packing import PRODUCT_TYPES, PackedModel
from factorcell.runs.run import Run

K = 10
BEAM, PLAIN, FLOATS = "published beam", "plain exact", "compiled"
PERCENTILES = (50, 95, 99)
USERS = 32
WIDTH, BRANCHING = 100, 4  # of the published beam
Times = dict[str, list[float]]  # milliseconds


def beam(model: LanguageModel, typed: PrefixState, k: int, max_tokens: int) -> SearchResult:
    """Return the `k` best completions of at most `max_tokens` tokens by the beam search of the thesis (section 5.4.1).

    Each step follows the `BRANCHING` most probable tokens of every hypothesis and keeps the `WIDTH` best texts.
    """
    finished: list[Completion] = []
    unfinished, specials = [Completion((), 0.0)], model.specials
    (states, logs), rows = typed.states[-1], 0
    for length in range(max_tokens + 1):
        candidates = []
        known = logs.clone()
        known[:, specials.unknown] = -math.inf
        values, tokens = known.topk(min(BRANCHING, logs.shape[1]))
        for row, hypothesis in enumerate(unfinished):
            for value, token in zip(values[row].tolist(), tokens[row].tolist(), strict=True):
                candidates.append((hypothesis.log_probability + value, hypothesis.ids, token, row))
        finished += [Completion(ids, score) for score, ids, token, _ in candidates if token == specials.end]
        continued = (
            [new for new in candidates if new[2] != specials.end and new[0] > -math.inf] if length < max_tokens else []
        )
        best_scores = heapq.nlargest(
            WIDTH, [text.log_probability for text in finished] + [score for score, *_ in continued]
        )
        finished = [text for text in finished if text.log_probability >= best_scores[-1]]
        continued = [new for new in continued if new[0] >= best_scores[-1]]
        if not continued:
            break
        unfinished = [Completion((*ids, token), score) for score, ids, token, _ in continued]
        before = states.select(torch.tensor([row for *_, row in continued]))
        logs, states = model.step(torch.tensor([text.ids[-1] for text in unfinished]), typed.conditioning, before)
        rows += len(unfinished)
    best = sorted(finished, key=lambda text: (-text.log_probability, text.ids))
    return SearchResult(tuple(best[:k]), rows, is_cut=False)


def draw_prefix(user: str, text: str, position: int) -> str | None:
    """Return the prefix of a text, at least 2 characters typed and 1 left, or None if the text is shorter."""
    if len(text) < 3:
        return None
    number = int.from_bytes(hashlib.sha256(f"{user}\0{text}\0{position}".encode()).digest()[:8], "little")
    return text[: 2 + number % (len(text) - 2)]


def prefixes(path: Path, text_column: str, user_column: str, count: int, longest: int) -> list[dict[str, str]]:
    """Return `count` random prefixes of texts of at most `longest` characters, as rows with the user of the text."""
    chunks = open_table(path).chunks([text_column, user_column])
    rows = [row for chunk in chunks for row in zip(chunk[text_column], chunk[user_column], strict=True)]
    result = []
    for position, (text, user) in enumerate(rows):
        prefix = draw_prefix(str(user), text, position) if len(text) <= longest else None
        if prefix is not None:
            result.append({text_column: prefix, user_column: str(user)})
    random.Random(0).shuffle(result)
    return result[:count]


class Bench:
    """The contenders of one run, with the milliseconds and results of each."""

    def __init__(self, run: Run) -> None:
        self.run, self.max_tokens = run, run.config.data.max_tokens - 1
        self.engines: dict[str, Any] = {PLAIN: PlainEngine(run.model), FLOATS: new_engine(run.model, "float32")}
        if library.has_bfloat16():
            self.engines |= {f"{FLOATS}, {name}": new_engine(run.model, name) for name in PRODUCT_TYPES[1:]}
        self.times: dict[str, Times] = defaultdict(lambda: defaultdict(list))
        self.results: dict[str, list[SearchResult]] = defaultdict(list)

    def timed(self, what: str, contender: str, once: Callable[[], Any]) -> Any:
        """Call `once`, record the processor time of this thread and return the result."""
        start = time.thread_time()
        result = once()
        self.times[what][contender].append((time.thread_time() - start) * 1e3)
        return result

    def request(self, typed: Any) -> SearchRequest:
        """Return a request for ten completions."""
        return SearchRequest(typed, K, self.max_tokens - len(typed.ids), lambda ids: ids or None)

    def measure_row(self, row: dict[str, str]) -> dict[str, Any]:
        """Complete a prefix with all contenders in random order; return the prefix state of each engine."""
        text = self.run.config.data.text
        context = self.run.prepare([{**row, text: ""}], unknown="expected").context(np.zeros(1, np.int64))
        ids, typed = self.run.tokenizer.encode(row[text]), {}
        for name in random.sample(list(self.engines), len(self.engines)):
            engine = self.engines[name]
            begun = self.timed("begin", name, lambda engine=engine: engine.begin(context))
            before = engine.read_prefix(begun, ids[:-1])
            typed[name] = self.timed(
                "letter", name, lambda engine=engine, before=before: engine.read_prefix(before, ids)
            )
        for name in random.sample([BEAM, *self.engines], len(self.engines) + 1):
            self.results[name].append(self.timed("search", name, lambda name=name: self.search(name, typed)))
        return typed

    def learn(self, texts: list[str]) -> None:
        """Learn texts of one user in order, with the compiled recurrence and with the plain loop."""
        for name, kernel in ((PLAIN, "off"), (FLOATS, "")):
            os.environ["FACTORCELL_KERNEL"] = kernel
            learner = Learner(self.run)
            user = learner.new()
            for text in texts:
                (user,), _ = self.timed("learn", name, partial(learner.learn, [user], [text]))

    def search(self, name: str, typed: dict[str, Any]) -> SearchResult:
        """Search with one contender; the beam returns one more completion because the prefix itself does not count."""
        if name == BEAM:
            prefix = typed[PLAIN]
            return beam(self.run.model, prefix, K + 1, self.max_tokens - len(prefix.ids))
        result: SearchResult = self.engines[name].search(self.request(typed[name]))
        return result

    def throughput(self, name: str, states_of_prefixes: list[dict[str, Any]], threads: int) -> float:
        """Return the completions per second (wall-clock) for 32 requests at once: the median over such groups."""
        rates = []
        for start in range(0, len(states_of_prefixes) - USERS + 1, USERS):
            requests = [self.request(typed[name]) for typed in states_of_prefixes[start : start + USERS]]
            begin = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(self.engines[name].search, requests))
            rates.append(USERS / (time.perf_counter() - begin))
        return statistics.median(rates) if rates else float("nan")

    def figures(self) -> list[dict[str, Any]]:
        """Return a row for each contender and task; `ratio` is the beam's median over that of the contender."""
        rows = []
        for what, times in self.times.items():
            for name in (BEAM, *self.engines):
                if not (values := times[name][1:]):
                    continue
                row: dict[str, Any] = {"what": what, "contender": name}
                row |= {f"p{p}_ms": float(np.percentile(values, p)) for p in PERCENTILES}
                if what == "search":
                    row |= {"ratio": statistics.median(times[BEAM][1:]) / row["p50_ms"], **self.quality(name)}
                rows.append(row)
        return rows

    def quality(self, name: str) -> dict[str, float]:
        """Return rows of the model, cut searches, suggestions shared with the compiled float search, and worse results.

        A result is worse if its tenth score is below that of the beam by more than rounding; cut searches do not count.
        """
        rows, shared, worse = [], [], 0
        for result_of_engine, floats, published in zip(
            self.results[name], self.results[FLOATS], self.results[BEAM], strict=True
        ):
            rows.append(result_of_engine.expanded_count)
            if floats.is_cut or result_of_engine.is_cut:
                continue
            searched_ids, float_completions, beam_completions = (
                [completion for completion in completions.completions if completion.ids][:K]
                for completions in (result_of_engine, floats, published)
            )
            shared.append(
                len(
                    {completion.ids for completion in searched_ids}
                    & {completion.ids for completion in float_completions}
                )
                / max(1, len(float_completions))
            )
            if len(beam_completions) == K:
                worse += searched_ids[-1].log_probability < beam_completions[-1].log_probability - 1e-3
        return {
            "rows": statistics.median(rows),
            "cut": sum(completions.is_cut for completions in self.results[name]),
            "shared": statistics.mean(shared) if shared else float("nan"),
            "worse": worse,
        }


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table for each task."""
    for what in dict.fromkeys(row["what"] for row in rows):
        selected = [row for row in rows if row["what"] == what]
        names = list(selected[0])[1:]
        print("| " + " | ".join([what, *names[1:]]) + " |\n|---" + "|---:" * len(names[1:]) + "|")
        for row in selected:
            cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in list(row.values())[1:]]
            print("| " + " | ".join(cells) + " |")
        print()


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(
        description="Complete real texts with the published beam, and with the exact search, plain and compiled."
    )
    parser.add_argument("run", type=Path, help="run folder of a model of characters with one layer of coupled cells")
    parser.add_argument("table", type=Path, help="table of texts")
    parser.add_argument("--user", default="user", help="the user column of the run (default: user)")
    parser.add_argument("--prefixes", type=int, default=100)
    parser.add_argument(
        "--longest", type=int, default=100, help="maximum length of the texts, in characters (default: 100)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads for completions per second (default: 2)")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = Run.open(options.run)
    if PackedModel.from_model(run.model) is None:
        parser.error(f"{options.run}: no compiled search for this model on this machine")
    begin = time.perf_counter()
    Completer(Run.open(options.run))
    opening_time = (time.perf_counter() - begin) * 1e3
    bench = Bench(run)
    texts = prefixes(options.table, run.config.data.text, options.user, options.prefixes, options.longest)
    with torch.inference_mode():
        states_of_prefixes = [bench.measure_row(row) for row in tqdm(texts, unit="prefix", disable=None)]
    if run.config.data.user:
        bench.learn([row[run.config.data.text] for row in texts])
    with torch.inference_mode():
        rows = bench.figures()
        for name in bench.engines:
            if name != PLAIN and len(states_of_prefixes) >= USERS:
                rate = bench.throughput(name, states_of_prefixes, options.threads)
                rows.append({"what": f"{USERS} users, {options.threads} threads", "contender": name, "a_second": rate})
    rows.append({"what": "opening a run", "contender": FLOATS, "ms": opening_time})
    if run.config.data.user:
        user = replace(User.new(run), history=History())
        rows.append({"what": "a user without texts", "contender": "", "bytes": len(user.to_bytes())})
    show(rows)
    facts = {"cpu": library.variant(), "load": os.getloadavg()[0], "torch": torch.__version__, "prefixes": len(texts)}
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({"run": str(options.run), **row, **facts, "machine": platform.machine()}) + "\n")


if __name__ == "__main__":
    main()
