"""Section A.2 of the thesis: does a penalty on how far weights move help fine-tuning on few texts?

The unadapted model of table A.1 is trained further on four small sets, all of it or its softmax bias, until the
development part gets no better. Weights and penalties are chosen by all targets: hotels lack many words of films.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import corpora
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation import text_figures
from factorcell.model.run import Run
from factorcell.model.scoring import Scorer
from factorcell.training.finetuning import finetune
from hotels import region_of
from study import Experiment, Measured, Row
from tacl_baselines import NGRAM, best_ngram, ngram_row, tokenizer_of
from thesis_sparse import EXPERIMENT as SPARSE
from thesis_sparse import VARIABLES

TUNED = "none"  # the row of table A.1 that is
REGION, WORD, NARROW = "CA", "breakfast", "horror"
MOST = 1000  # texts of each domain that are learned from; of its other parts as many at most
PENALTIES = ("0", "1e-5", "1e-4")  # nats, for each unit that a value moves
WAYS: dict[str, tuple[tuple[str, ...], int, float]] = {  # parts that move, texts that are learned from, and the rate
    "all": (("all",), MOST, 1e-3),
    "all, 100 texts": (("all",), 100, 1e-3),
    "bias": (("output_bias",), MOST, 0.03),  # in a few hundred steps less would move it nowhere, penalty or none
}
KINDS = {"perplexity": "", "perplexity_known": ", known targets"}  # of figures -> how their keys end
DOMAINS: dict[str, tuple[str, Callable[[Row], bool]]] = {  # the set that texts are of, and which of them
    "a word": ("hotels", lambda row: WORD in row["text"].lower().split()),
    "a region": ("hotels", lambda row: region_of(row["city"]) == REGION),
    "films": ("imdb", lambda row: True),
    "films of a kind": ("imdb", lambda row: NARROW in row["text"].lower().split()),
}


def domain(path: Path, fits: Callable[[Row], bool], most: int) -> pa.Table:
    """The first texts of a table that fit, with the columns of hotels, which a film has not."""
    rows = [row for row in corpora.read(path).to_pylist() if fits(row)][:most]
    return pa.Table.from_pylist(
        [{"text": row["text"], **{key: str(row.get(key, "")) for key in VARIABLES}} for row in rows]
    )


def tables(data: Path, folder: Path, share: float) -> Tables:
    """Hotel reviews, and three parts of each domain."""
    parts, most = SPARSE.tables(data, folder, share), max(20, round(MOST * share))
    for name, (source, fits) in DOMAINS.items():
        for part, path in corpora.parts(data, folder, source).items():
            table_path = folder / f"finetuned-{name.replace(' ', '_')}-{part}-{most}.parquet"
            parts[f"{name} {part}"] = corpora.create_once(table_path, partial(domain, path, fits, most))
    return parts


def measure(run: Run, tables: Tables) -> Measured:
    """Perplexities of each domain before and after, on its dev and on its test; keys are domain, way and penalty."""
    measured: dict[str, Measured] = {}
    for name in DOMAINS:
        measured[f"{name}, before"] = measure_perplexities(run, parts_of(tables, name))
        for way, (parts, most, rate) in WAYS.items():
            domain_tables = parts_of(tables, name, most)
            for l1 in PENALTIES:
                folder = run.folder.with_name(f"{run.folder.name}-finetuned") / name / way / l1
                how: dict[str, Any] = {"parts": parts, "training": {"learning_rate": rate}, "l1": float(l1)}
                tuned = finetune(
                    run, domain_tables["train"], domain_tables["dev"], folder, **how, unknown="group", resume=True
                )
                measured[f"{name}, {way}, {l1}"] = measure_perplexities(tuned, domain_tables)
    return together(measured)


def ngram(config: Config, tables: Tables, folder: Path) -> Measured:
    """What n-grams of each domain's texts cost, as many texts as are learned from, by the tokenizer of the hotels."""
    tokenizer, sizes = tokenizer_of(config, tables), {most for _, most, _ in WAYS.values()}
    measured = {}
    for name, most in itertools.product(DOMAINS, sorted(sizes)):
        parts = parts_of(tables, name, most)
        measured[f"{name}, {NGRAM}, {most}"] = measure_perplexities(best_ngram(config, parts, folder, tokenizer), parts)
    return together(measured)


def parts_of(tables: Tables, name: str, most: int = MOST) -> Tables:
    """The parts of a domain, the first texts alone of the one that is learned from."""
    parts = {part: tables[f"{name} {part}"] for part in corpora.PARTS}
    return {**parts, "train": corpora.first(parts["train"], most)}


def measure_perplexities(scorer: Scorer, tables: Tables) -> Measured:
    """The nats of a target of dev's texts, and what each text of the test adds to both perplexities."""
    dev, test = (scorer.prepare(tables[part], unknown="group") for part in ("dev", "test"))
    nats = text_figures.figures_from_nats(scorer.nats(dev), dev)["perplexity"].ratio
    return Measured({"dev": nats, "texts": len(test)}, text_figures.figures_from_nats(scorer.nats(test), test))


def together(measured: Mapping[str, Measured]) -> Measured:
    """All that was measured, by its keys."""
    figures = {
        f"{key}{end}": measured_one.figures[kind]
        for key, measured_one in measured.items()
        for kind, end in KINDS.items()
    }
    return Measured({"finetuned": {key: measured_one.row for key, measured_one in measured.items()}}, figures)


BASELINES = ngram_row(ngram)
ROWS = dict.fromkeys((TUNED, NGRAM), SPARSE.rows["none"])
EXPERIMENT = Experiment("finetuned", SPARSE.recipe, ROWS, tables, measure, runs=SPARSE.name, baselines=BASELINES)
