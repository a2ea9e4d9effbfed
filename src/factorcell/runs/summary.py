"""Facts about a training, each with a label: `train` shows them as one block, and a notebook as a table.

The results come from the folder of a run, so that a training that is resumed at its end shows them again.
"""

import calendar
from collections.abc import Iterator
from datetime import date, timedelta

import numpy as np

from factorcell.bootstrap import Interval
from factorcell.data.columns.schema import MISSING
from factorcell.data.corpus import Corpus
from factorcell.io.findings import Fact
from factorcell.io.output import format_number
from factorcell.runs.model_card import mixture_perplexity
from factorcell.runs.run import Run, training_facts
from factorcell.runs.saved_results import UNKNOWN_CONTEXT_GAIN, gain_title
from factorcell.runs.used_options import used_options

SIZES = ("base", "architecture", "hidden_size", "rank")  # options that are shown with the size of a model


def data_facts(corpus: Corpus, dev: Corpus) -> Iterator[Fact]:
    """Yield the sizes of the tables and of the vocabulary."""
    unit = corpus.tokenizer.unit
    yield "texts", f"{len(corpus):,} ({corpus.target_count:,} {unit}s), {len(dev):,} for development"
    yield "vocabulary", f"{len(corpus.tokenizer):,} {unit}s"


def column_facts(corpus: Corpus, user: str) -> Iterator[Fact]:
    """Yield the kind of each context variable, three values, and the numbers of rare and missing values.

    The values of the column `user` are not shown.
    """
    schema, label = corpus.schema, "columns"
    if not schema.variables:
        yield label, "none"
    for variable in schema.variables:
        missing, examples = 0, list[str]()
        if variable.kind == "category":
            ids = corpus.categories[:, schema.categories.index(variable)]
            missing = int((ids == MISSING).sum())
            examples = [] if variable.source_column == user else [*variable.values[1:4]]
        elif variable in schema.numbers:
            numbers = corpus.numbers[:, schema.numbers.index(variable)]
            missing = int(np.isnan(numbers).sum())
            distinct = dict.fromkeys(numbers[~np.isnan(numbers)][:1000].tolist())
            examples = [format_cell(variable.kind, number) for number in distinct]
        elif variable.kind == "vector":
            missing = int(np.isnan(corpus.vectors[schema.vectors.index(variable)][:, 0]).sum())
        elif variable.kind == "text":
            examples = [*variable.values[:3]]
        listing = ", ".join(f"{example:.20}" for example in list(dict.fromkeys(examples))[:3])
        if listing:
            parts = [f"{variable.kind} such as {listing}", variable.details.removeprefix(variable.kind).lstrip(" ,")]
        else:
            parts = [variable.kind, variable.details] if variable.kind == "category" else [variable.details]
        parts += [f"{missing:,} missing"] if missing else []
        yield label, f"{variable.name}: {'; '.join(parts)}"
        label = ""


def format_cell(kind: str, number: float) -> str:
    """Return a number of a variable as people write it: as a time of day, a weekday, a day of the year or a number."""
    if kind == "hour":
        return f"{int(number)}:{int(number % 1 * 60 + 1e-3):02d}"
    if kind == "weekday":
        return calendar.day_abbr[int(number)]
    if kind == "yearday":
        return f"{date(2023, 1, 1) + timedelta(days=number):%d %b}"
    return f"{number:.6g}"


def model_facts(run: Run) -> Iterator[Fact]:
    """Yield the adaptations and the size of the model."""
    model, backbone = run.model, run.config.backbone
    details = [run.config.model_name if model.is_adapted else "unadapted (reads no columns)"]
    sizes = used_options(SIZES, run.config, run.schema)
    details += [run.config.format_options([name]) for name in sizes if name == "rank" or getattr(backbone, name, None)]
    details += ["frozen base in bfloat16"] if getattr(backbone, "is_frozen_in_bfloat16", False) else []
    yield "model", ", ".join([*details, model.describe_size()])
    if model.names is not None:
        yield "names", model.names.describe()


def steps_fact(run: Run) -> Fact:
    """Return the number of steps and the duration of a finished training, and why it stopped early."""
    last, best = run.log()[-1], run.best_evaluation() or {}
    text = f"{last['step']:,} of {last['steps']:,} steps, {run.training_minutes():.1f} minutes"
    text += f", best perplexity at step {best.get('step', 0):,}"
    if last["step"] < last["steps"]:
        text += f"; stopped early: no lower perplexity in the last {run.config.training.patience} evaluations"
    return "training", text


def result_facts(run: Run) -> Iterator[Fact]:
    """Yield the results of a training on its development texts."""
    facts = training_facts(run.folder)
    if best := run.best_evaluation():
        neural, known = (format_number(best[name], ".2f") for name in ("perplexity", "perplexity_known"))
        mixed = mixture_perplexity(run)
        details = [] if mixed is None else [f"mixture; its neural model alone: {neural}"]
        if run.tokenizer.is_subword and "bits_per_byte" in best:
            details.append(f"{format_number(best['bits_per_byte'], '.3f')} bits per byte")
        elif known != neural and mixed is None:
            details.append(f"{known} without out-of-vocabulary targets")
        if facts.get("finetuned"):  # such a training is evaluated before its first step
            details.append(f"{format_number(run.log()[0]['perplexity'], '.2f')} before fine-tuning")
        shown = neural if mixed is None else format_number(mixed, ".2f")
        yield "perplexity", f"{shown} on the development texts" + (f" ({', '.join(details)})" if details else "")
    context = facts.get("context") or {}
    gain = Interval.from_row(context, UNKNOWN_CONTEXT_GAIN)
    if gain and not context.get("only_unknown_users"):
        significance = ", not significant" if gain.low is not None and not gain.sign else ""
        reference = gain_title(UNKNOWN_CONTEXT_GAIN).removeprefix("gain ")
        yield "gain", f"{gain.format_estimate('.1f', 100.0, '%')} {reference}{significance}"
    if perplexities := facts.get("ngram", {}).get("perplexity"):
        counts, mixture = (format_number(perplexities[name], ".2f") for name in ("ngram", "mixture"))
        yield "n-grams", f"{counts}, mixture with the model {mixture}"
    row = facts.get("completion") or {}
    if row.get("mrr") is not None:
        sources = ", ".join(f"{name} {row[f'mrr_{name}']:.3f}" for name in ("model", "popularity", "history"))
        difference = Interval.from_row(row, "mrr_difference")
        gain_over_model = f"; {difference.to_text('.3f')} over the model" if difference else ""
        yield "completion", f"{row['mrr']:.3f} mean reciprocal rank ({sources}){gain_over_model}"
        if row["perplexity_change"] is not None:
            yield "learning", f"{-row['perplexity_change']:+.1%} gain in perplexity from learning users"
