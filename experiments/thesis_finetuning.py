"""Section A.2 of the thesis: the effect of a penalty on changes of weights when fine-tuning on few texts.

The unadapted model of table A.1 is fine-tuned on four small sets, all of it or only its softmax bias, until the
development part stops improving. Weights and penalties are chosen by the perplexity over all targets, because many
words of film reviews are out of the vocabulary of hotels.
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
from factorcell.nn.scoring import Scorer
from factorcell.runs.run import Run
from factorcell.training.fit import finetune
from hotels import region_of
from study import Experiment, Measurement, Row
from tacl_baselines import NGRAM, best_ngram, ngram_row, tokenizer_of
from thesis_sparse import EXPERIMENT as SPARSE
from thesis_sparse import VARIABLES

BASE_ROW = "none"  # the row of table A.1 that is fine-tuned
REGION, WORD, NARROW = "CA", "breakfast", "horror"
MAX_TEXTS = 1000  # maximum for each part of a domain
PENALTIES = ("0", "1e-5", "1e-4")  # nats per unit of change of a weight
WAYS: dict[str, tuple[tuple[str, ...], int, float]] = {  # fine-tuned parts, number of training texts, learning rate
    "all": (("all",), MAX_TEXTS, 1e-3),
    "all, 100 texts": (("all",), 100, 1e-3),
    "bias": (("output_bias",), MAX_TEXTS, 0.03),  # smaller rates change little in a few hundred steps
}
KINDS = {"perplexity": "", "perplexity_known": ", known targets"}  # figure -> suffix of its key
DOMAINS: dict[str, tuple[str, Callable[[Row], bool]]] = {  # the data set, and the condition for its texts
    "a word": ("hotels", lambda row: WORD in row["text"].lower().split()),
    "a region": ("hotels", lambda row: region_of(row["city"]) == REGION),
    "films": ("imdb", lambda row: True),
    "films of a kind": ("imdb", lambda row: NARROW in row["text"].lower().split()),
}


def domain(path: Path, fits: Callable[[Row], bool], max_texts: int) -> pa.Table:
    """Return the first texts of a table that fit, with the columns of hotels, which films lack."""
    rows = [row for row in corpora.read(path).to_pylist() if fits(row)][:max_texts]
    return pa.Table.from_pylist(
        [{"text": row["text"], **{key: str(row.get(key, "")) for key in VARIABLES}} for row in rows]
    )


def tables(data: Path, folder: Path, share: float) -> Tables:
    parts, max_texts = SPARSE.tables(data, folder, share), max(20, round(MAX_TEXTS * share))
    for name, (source, fits) in DOMAINS.items():
        for part, path in corpora.parts(data, folder, source).items():
            table_path = folder / f"finetuned-{name.replace(' ', '_')}-{part}-{max_texts}.parquet"
            parts[f"{name} {part}"] = corpora.create_once(table_path, partial(domain, path, fits, max_texts))
    return parts


def measure(run: Run, tables: Tables) -> Measurement:
    """Measure perplexities of each domain before and after; the keys are domain, way and penalty."""
    measured: dict[str, Measurement] = {}
    for name in DOMAINS:
        measured[f"{name}, before"] = measure_perplexities(run, domain_parts(tables, name))
        for way, (parts, max_texts, rate) in WAYS.items():
            domain_tables = domain_parts(tables, name, max_texts)
            for l1 in PENALTIES:
                folder = run.folder.with_name(f"{run.folder.name}-finetuned") / name / way / l1
                options: dict[str, Any] = {"parts": parts, "learning_rate": rate, "l1": float(l1), "resume": True}
                tuned = finetune(run, domain_tables["train"], dev=domain_tables["dev"], out=folder, **options)
                measured[f"{name}, {way}, {l1}"] = measure_perplexities(tuned, domain_tables)
    return merge_measurements(measured)


def ngram(config: Config, tables: Tables, folder: Path) -> Measurement:
    """Measure n-gram models of each domain, trained on the same texts with the tokenizer of the hotels."""
    tokenizer, sizes = tokenizer_of(config, tables), {max_texts for _, max_texts, _ in WAYS.values()}
    measured = {}
    for name, max_texts in itertools.product(DOMAINS, sorted(sizes)):
        parts = domain_parts(tables, name, max_texts)
        measured[f"{name}, {NGRAM}, {max_texts}"] = measure_perplexities(
            best_ngram(config, parts, folder, tokenizer), parts
        )
    return merge_measurements(measured)


def domain_parts(tables: Tables, name: str, max_texts: int = MAX_TEXTS) -> Tables:
    parts = {part: tables[f"{name} {part}"] for part in corpora.PARTS}
    return {**parts, "train": corpora.first(parts["train"], max_texts)}


def measure_perplexities(scorer: Scorer, tables: Tables) -> Measurement:
    dev, test = (scorer.prepare(tables[part], unknown="group") for part in ("dev", "test"))
    nats = text_figures.figures_from_nats(scorer.nats(dev), dev)["perplexity"].ratio
    return Measurement({"dev": nats, "texts": len(test)}, text_figures.figures_from_nats(scorer.nats(test), test))


def merge_measurements(measured: Mapping[str, Measurement]) -> Measurement:
    figures = {
        f"{key}{end}": measurement.figures[kind] for key, measurement in measured.items() for kind, end in KINDS.items()
    }
    return Measurement({"finetuned": {key: measurement.row for key, measurement in measured.items()}}, figures)


BASELINES = ngram_row(ngram)
ROWS = dict.fromkeys((BASE_ROW, NGRAM), SPARSE.rows["none"])
EXPERIMENT = Experiment("finetuned", SPARSE.recipe, ROWS, tables, measure, runs=SPARSE.name, baselines=BASELINES)
