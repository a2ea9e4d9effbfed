"""Measure how much a run memorizes: plant random texts (canaries) in a training table, and rank them in the run.

    python experiments/memorization.py plant TRAIN --text COLUMN --out FOLDER
    python experiments/memorization.py audit RUN FOLDER/canaries.parquet TRAIN TEST

`plant` writes FOLDER/train.parquet, the training table followed by the canaries, and FOLDER/canaries.parquet. Train RUN
on the former. A canary has the whole context (including the user) of one row, and is planted 1 to 10 times.

    exposure = log2 |R| - log2 rank,    |R| = A + 1

A canary and A random alternatives of the same form are ranked by their probability; together they are the set R. The
rank of a canary that is not memorized is uniformly distributed, and the mean of such exposures is 1.44 bits. An exact
one-sided Kolmogorov-Smirnov test gives the probability that uniformly distributed ranks are as low as the observed
ones. A canary is ranked for three readers, which are contexts of the model: the `owner`, among whose texts it was
planted; the `stranger`, the unknown user in an otherwise equal context; and the `others`, the owners of all other
canaries (for each text, the one who makes it most probable).

References:
    Carlini, Liu, Erlingsson, Kos and Song 2019, "The Secret Sharer", section 4 and equation 1.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import regex
from numpy.typing import NDArray
from pyarrow import parquet as pq
from scipy import stats

from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, distinguishes_users
from factorcell.completion.popularity import Popularity, Suggestion
from factorcell.completion.replay import model_system
from factorcell.data.counts import POPULARITY
from factorcell.evaluation import perplexity
from factorcell.io.progress import progress_bar
from factorcell.runs.run import Run

READERS = ("stranger", "others", "owner")
COMPLETION_SOURCES = ("model", "popularity", "blend")
CANARIES, ALTERNATIVES, MAX_REPETITIONS = 100, 1000, 10
LENGTHS = {"characters": 10, "words": 5}  # of a canary
ALPHABETS = {"characters": 36, "words": 500}  # the number of most frequent letters and digits, or words
SUGGESTIONS = 10  # number of completions in which a canary is searched
SIGNIFICANCE_LEVEL = 0.01  # of the Kolmogorov-Smirnov test
REPETITIONS = "canary_repetitions"  # the column of the table of canaries with the number of copies
UNSEEN_USER = "unseen user of an audit"

Row = dict[str, Any]
Floats = NDArray[np.float64]


def draw(texts: Sequence[str], unit: str, count: int, key: Sequence[int]) -> list[str]:
    """Draw different random texts of the most frequent letters and digits, or words, of `texts` in lower case."""
    pattern = regex.compile(r"[\p{L}\p{N}]" if unit == "characters" else r"[\p{L}\p{N}]+")
    frequencies = Counter(part for text in texts for part in pattern.findall(text.lower()))
    alphabet = sorted(frequencies, key=lambda part: (-frequencies[part], part))[: ALPHABETS[unit]]
    separator, generator = "" if unit == "characters" else " ", np.random.default_rng(key)
    drawn = dict[str, None]()  # a set in the order in which its items were added
    while len(drawn) < count:
        drawn[separator.join(generator.choice(alphabet, LENGTHS[unit]))] = None
    return list(drawn)


def make_canaries(train: pa.Table, text: str, count: int, seed: int, unit: str = "characters") -> pa.Table:
    """Return canaries, each with the other columns of a random row; `REPETITIONS` has 1, 2, ..., 10, 1, 2, ..."""
    rows = np.random.default_rng((seed, 1)).choice(len(train), count, replace=count > len(train))
    texts = draw(train[text].to_pylist(), unit, count, (seed, 0))
    column = pa.array(texts, train.schema.field(text).type)
    canaries = train.take(rows).set_column(train.column_names.index(text), text, column)
    return canaries.append_column(REPETITIONS, pa.array(np.arange(count) % MAX_REPETITIONS + 1))


def plant(train: pa.Table, canaries: pa.Table) -> pa.Table:
    """Return the training table followed by the canaries, each repeated as often as its row says."""
    rows = np.repeat(np.arange(len(canaries)), canaries[REPETITIONS].to_numpy())
    return pa.concat_tables([train, canaries.drop_columns([REPETITIONS]).take(rows)])


def audit(
    run: Run, canaries: pa.Table, train: pa.Table, table: Any, *, unit: str = "characters", progress: bool = False
) -> Row:
    """Measure how much a run memorized the canaries of its training table.

    Args:
        run: The run, trained on `plant(train, canaries)`.
        canaries: The canaries.
        train: The training table without canaries, from whose letters or words the alternatives are drawn.
        table: Held-out texts, for the perplexity.
        unit: "characters" or "words".
        progress: Whether to show a progress bar.

    Returns:
        `texts` is the row of `evaluate` for `table`. `canaries` has a row for each canary: its exposure in bits for
        each reader, and whether each source of completions suggests it to an unseen user who has typed its first half.
        `exposure` has means by number of repetitions, with intervals and tests.
    """
    rows, text = canaries.to_pylist(), run.config.data.text
    alternatives = draw(train[text].to_pylist(), unit, ALTERNATIVES, (0, 2))
    exposures = {reader: exposure(ranks) for reader, ranks in _ranks(run, rows, alternatives, progress).items()}
    suggestions = _suggestions(run, [row[text] for row in rows])
    results = [
        {
            "canary": row[text],
            "times": row[REPETITIONS],
            **{reader: None if math.isnan(bits[index]) else float(bits[index]) for reader, bits in exposures.items()},
            **suggestions[index],
        }
        for index, row in enumerate(rows)
    ]
    groups = [("all", results)] + [
        (str(times), [row for row in results if row["times"] == times]) for times in range(1, MAX_REPETITIONS + 1)
    ]
    return {
        "texts": perplexity.evaluate(run, table).row,
        "exposure": [_summarize(name, members) for name, members in groups if members],
        "canaries": results,
    }


def exposure(ranks: Floats, alternatives: int = ALTERNATIVES) -> Floats:
    """Return the exposure in bits of canaries with these ranks among `alternatives` other texts."""
    bits: Floats = np.log2((alternatives + 1) / ranks)
    return bits


def chance_exposure(alternatives: int = ALTERNATIVES) -> float:
    """Return the mean exposure of uniformly distributed ranks, which is about log2 e = 1.44 bits."""
    return float(exposure(np.arange(1.0, alternatives + 2), alternatives).mean())


def uniformity_p_value(ranks: Floats, alternatives: int = ALTERNATIVES) -> float:
    """Return the p-value of the exact one-sided Kolmogorov-Smirnov test that ranks are uniformly distributed."""
    test = stats.kstest(ranks / (alternatives + 1), "uniform", alternative="greater", method="exact")
    return float(test.pvalue)


def _ranks(run: Run, rows: Sequence[Row], alternatives: Sequence[str], progress: bool) -> dict[str, Floats]:
    """Return for each of `READERS` the rank (N,) of every canary, 1 for the most likely text; tied texts have a mean.

    The rank for `others` is NaN if all canaries have the same owner.
    """
    data, count = run.config.data, len(rows)
    columns = [column for column in run.schema.columns() if column in rows[0]]
    texts = [*(row[data.text] for row in rows), *alternatives]
    contexts = [{column: row[column] for column in columns} for row in rows]
    strangers = [{**context, data.user: UNSEEN_USER} if data.user in context else {} for context in contexts]
    distinct = list({json.dumps(context, default=str): context for context in (*contexts, *strangers)}.values())
    nats = np.empty((len(distinct), len(texts)))
    for index, context in enumerate(progress_bar(distinct, desc="exposure", unit="contexts", show=progress)):
        missing = dict.fromkeys(columns)
        scored = run.score_rows([{**missing, **context, data.text: text} for text in texts], unknown="group")
        nats[index] = [row["nats"] for row in scored]
    owner_contexts = np.array([distinct.index(context) for context in contexts])
    owners = [context.get(data.user) if data.user in columns else str(context) for context in contexts]
    nats_of_others = np.full((count, len(texts)), np.nan)
    for canary, owner in enumerate(owners):
        other_contexts = {owner_contexts[index] for index, other in enumerate(owners) if other != owner}
        if other_contexts:
            nats_of_others[canary] = nats[sorted(other_contexts)].min(0)
    by_reader = {
        "stranger": nats[[distinct.index(context) for context in strangers]],
        "others": nats_of_others,
        "owner": nats[owner_contexts],
    }
    return {reader: _ranks_from_nats(reader_nats, count) for reader, reader_nats in by_reader.items()}


def _ranks_from_nats(nats: Floats, count: int) -> Floats:
    """Return the ranks (N,) of `count` = N canaries from the nats (N, N + A) of all texts in the context of each."""
    canary_nats, alternative_nats = np.diagonal(nats)[:, None], nats[:, count:]
    ranks: Floats = 1 + (alternative_nats < canary_nats).sum(1) + (alternative_nats == canary_nats).sum(1) / 2
    ranks[np.isnan(canary_nats[:, 0])] = np.nan
    return ranks


def _suggestions(run: Run, texts: Sequence[str]) -> list[Row]:
    """Return for each canary which sources of completions suggest it to an unseen user who typed its first half.

    The rows are empty unless the tokenizer of the run can complete texts.
    """
    if not run.tokenizer.restores_texts:
        return [{} for _ in texts]
    completer = Completer(run, unknown="group")
    user = User.new(run) if distinguishes_users(run) else None
    sources: dict[str, Callable[[str], Sequence[Suggestion]]] = {
        "model": lambda prefix: completer.complete(prefix, user, k=SUGGESTIONS)
    }
    if (run.folder / POPULARITY).exists():
        popularity = Popularity.from_run(run)
        sources["popularity"] = lambda prefix: popularity.complete(prefix, SUGGESTIONS)
        if user is not None:
            blend = model_system(Blend(run, popularity, unknown="group"))
            sources["blend"] = lambda prefix: blend(prefix, {}, user.history, user)
    prefixes = [text[: (len(text) + 1) // 2] for text in texts]
    return [
        {name: text in [item.text for item in suggest(prefix)] for name, suggest in sources.items()}
        for text, prefix in zip(texts, prefixes, strict=True)
    ]


def _summarize(repetitions: str, rows: Sequence[Row]) -> Row:
    """Summarize canaries; for each reader: mean exposure, its 95 % interval, maximum, and p-value."""
    summary: Row = {"times": repetitions, "canaries": len(rows)}
    for reader in READERS:
        bits = np.array([row[reader] for row in rows if row[reader] is not None])
        if len(bits):
            half_width = 1.96 * float(bits.std(ddof=1)) / math.sqrt(len(bits)) if len(bits) > 1 else math.nan
            mean, p_value = float(bits.mean()), uniformity_p_value((ALTERNATIVES + 1) / 2**bits)
            summary |= {
                reader: mean,
                f"{reader}_low": mean - half_width,
                f"{reader}_high": mean + half_width,
                f"{reader}_largest": float(bits.max()),
                f"{reader}_p": p_value,
                f"{reader}_at_chance": p_value >= SIGNIFICANCE_LEVEL,
            }
    for source in COMPLETION_SOURCES:
        if source in rows[0]:
            summary[source] = sum(row[source] for row in rows)
    return summary


def main(words: Sequence[str]) -> None:
    """Plant canaries, or audit a run that was trained with them."""
    parser = argparse.ArgumentParser(description="Measure how much a run memorizes of its training texts.")
    commands = parser.add_subparsers(dest="command", required=True)
    planting = commands.add_parser("plant", help="write a training table with canaries")
    planting.add_argument("train", type=Path, help="training table (Parquet)")
    planting.add_argument("--text", default="text", help="column with the text")
    planting.add_argument("--out", type=Path, required=True, help="folder of train.parquet and canaries.parquet")
    planting.add_argument("--canaries", type=int, default=CANARIES, help="number of canaries")
    planting.add_argument("--seed", type=int, default=0)
    auditing = commands.add_parser("audit", help="rank the canaries in a run")
    auditing.add_argument("run", type=Path, help="run folder of a model trained with canaries")
    auditing.add_argument("canaries", type=Path, help="canaries.parquet")
    auditing.add_argument("train", type=Path, help="training table without canaries (Parquet)")
    auditing.add_argument("test", type=Path, help="held-out texts, for the perplexity")
    for command in (planting, auditing):
        command.add_argument("--unit", choices=LENGTHS, default="characters", help="what canaries are made of")
    arguments = parser.parse_args(words)
    train = pq.read_table(arguments.train)
    if arguments.command == "plant":
        canaries = make_canaries(train, arguments.text, arguments.canaries, arguments.seed, arguments.unit)
        arguments.out.mkdir(parents=True, exist_ok=True)
        pq.write_table(canaries, arguments.out / "canaries.parquet")
        pq.write_table(plant(train, canaries), arguments.out / "train.parquet")
        return
    run, canaries = Run.open(arguments.run), pq.read_table(arguments.canaries)
    result = audit(run, canaries, train, arguments.test, unit=arguments.unit, progress=True)
    print(f"perplexity of {arguments.test.name}: {result['texts']['perplexity']:.2f}")
    for row in result["exposure"]:
        print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}))
    print(f"exposure in bits: chance level {chance_exposure():.2f}, maximum {math.log2(ALTERNATIVES + 1):.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
