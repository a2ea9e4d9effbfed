"""Facts about a run: `train` logs them as a block, and the model card shows them as a list.

The card has names of files and folders but no paths, and no ids of users, so that it can be published.
"""

import calendar
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import date, timedelta
from pathlib import PurePath
from typing import Any

import numpy as np

from factorcell.adapters.adapters import find_adapter, weight_adapters
from factorcell.bootstrap import Interval
from factorcell.config import INPUT_ADAPTERS, Config, HuggingFaceOptions
from factorcell.data.columns.schema import MISSING, ContextSchema, Variable
from factorcell.data.columns.values import TIME_KINDS
from factorcell.data.corpus import Corpus
from factorcell.io import files
from factorcell.io.arrays import mapped
from factorcell.io.findings import Fact
from factorcell.io.output import escape_hidden, format_number
from factorcell.io.pretrained import HUB_NAME
from factorcell.runs import saved_results
from factorcell.runs.run import Run, training_facts
from factorcell.runs.saved_results import UNKNOWN_CONTEXT_GAIN, gain_title

SIZES = ("base", "architecture", "hidden_size", "rank", "shared_rank")  # options shown with the size of a model
# Characters with a meaning in Markdown.
MARKDOWN_CHARACTERS = re.compile(r"[\\`*_\[\]|~#$@>]|^[-+=]")
# Beginnings of lists and links. `escape_markdown` escapes the last character of a match.
LISTS_AND_LINKS = re.compile(r"^\d+[.)]|\w:(?=//)|www\.", re.IGNORECASE)
CARD = "README.md"
DIGEST_MARK = "\n<!-- digest: "  # before the digest of the card; an edited card has another one
TAGS = ("language-model", "context")


def used_options(names: Iterable[str], config: Config, schema: ContextSchema) -> list[str]:
    """Return those of the options `names` that a model with this config and these context variables uses."""
    unused = unused_options(config, schema)
    return [name for name in names if name not in unused]


def unused_options(config: Config, schema: ContextSchema) -> set[str]:
    """Return the options that a model with this config and these variables does not use."""
    model, adapters = config.model, weight_adapters(config.model)
    # Biases of the kinds one_hot, sparse and hash read values, those of low_rank_each the embeddings of variables.
    embedded = schema.embedded.variables
    has_context = bool(embedded)
    has_vector = has_context and bool(adapters or "low_rank" in model.output_bias)
    has_embedded_variables = len(schema.numbers) < len(embedded)  # numbers have no embeddings of their own
    is_used = {
        "adapt": has_context,
        "output_bias": has_context,
        "rank": has_vector and any(find_adapter(name).needs_rank for name in adapters),
        "context_size": has_vector,
        "variable_size": has_embedded_variables and (has_vector or "low_rank_each" in model.output_bias),
        "dropout_context": bool(schema.categories)
        and bool(adapters or model.output_bias or {*INPUT_ADAPTERS} & {*model.adapt}),
        "samples": config.training.samples > 0,
    }
    unused = {name for name, value in is_used.items() if not value}
    backbone, of_frozen_bases = config.backbone, {"shared_rank"}
    if not isinstance(backbone, HuggingFaceOptions):
        return unused
    unused.add("embedding_size")
    if not backbone.is_pretrained:
        return unused | {"train_base"} | of_frozen_bases
    return unused | {"layers", "hidden_size"} | (of_frozen_bases if backbone.train_base else set())


def public_config(config: Config) -> Config:
    """Return a config whose base is not the path of a file or folder, which is private; the hub has public names."""
    base = getattr(config.backbone, "base", "")
    if not base or HUB_NAME.fullmatch(base):
        return config
    return replace(config, backbone=replace(config.backbone, base=PurePath(base).name))  # type: ignore[call-arg]


def data_facts(corpus: Corpus, dev: Corpus, held_out: int) -> Iterator[Fact]:
    """Yield the sizes of the tables and of the vocabulary; `dev` has some of `held_out` development texts."""
    unit = corpus.tokenizer.unit
    dev_count = f"{len(dev):,}" + (f" of {held_out:,}" if len(dev) < held_out else "")
    yield "texts", f"{len(corpus):,} ({corpus.target_count:,} {unit}s), {dev_count} for development"
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
            missing = int(mapped(lambda ids: ids == MISSING, ids).sum())
            examples = [] if variable.source_column == user else [*variable.values[1:4]]
        elif variable in schema.numbers:
            numbers = corpus.numbers[:, schema.numbers.index(variable)]
            missing = int(mapped(np.isnan, numbers).sum())
            distinct = dict.fromkeys(mapped(lambda block: block[~np.isnan(block)], numbers)[:1000].tolist())
            examples = [format_cell(variable.kind, number) for number in distinct]
        elif variable.kind == "vector":
            missing = int(mapped(np.isnan, corpus.vectors[schema.vectors.index(variable)][:, 0]).sum())
        elif variable.kind == "text":
            examples = [*variable.values[:3]]
        shown = list(dict.fromkeys(examples))[:3]
        listing = ", ".join(example if len(example) <= 20 else f"{example[:19]}…" for example in shown)
        if listing:
            parts = [f"{variable.kind} such as {listing}", variable.details.removeprefix(variable.kind).lstrip(" ,")]
        else:
            parts = [variable.kind, variable.details] if variable.kind == "category" else [variable.details]
        parts += [f"{missing:,} missing"] if missing else []
        yield label, f"{variable.source_column}: {'; '.join(parts)}"
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
    config = public_config(run.config)
    details += [config.format_options([name]) for name in sizes if name == "rank" or getattr(backbone, name, None)]
    details += ["frozen base in bfloat16"] if getattr(backbone, "is_frozen_in_bfloat16", False) else []
    count, trained = model.parameter_count(), model.trained_count()
    details += [f"{count:,} parameters", *([f"of which {trained:,} are trained"] if trained < count else [])]
    yield "model", ", ".join(details)
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


def mixture_perplexity(run: Run) -> float | None:
    """Return the development perplexity of the mixture of a run, by cross-validation; None if it has no mixture."""
    perplexities = training_facts(run.folder).get("ngram", {}).get("perplexity", {})
    return perplexities.get("mixture") if run.has_mixture else None


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
            details.append(f"{known} of in-vocabulary targets")
        if facts.get("finetuned"):  # such a training is evaluated before its first step
            details.append(f"{format_number(run.log()[0]['perplexity'], '.2f')} before fine-tuning")
        shown = neural if mixed is None else format_number(mixed, ".2f")
        yield "perplexity", f"{shown} on the development texts" + (f" ({', '.join(details)})" if details else "")
    context = facts.get("context") or {}
    gain = Interval.from_row(context, UNKNOWN_CONTEXT_GAIN)
    if gain and not context.get("only_unknown_users"):
        reference = gain_title(UNKNOWN_CONTEXT_GAIN).removeprefix("gain ")
        yield "gain", f"{gain.to_text('.1f', 100.0, '%')} {reference}; usually less over an unadapted model (compare)"
    if perplexities := facts.get("ngram", {}).get("perplexity"):
        counts, mixture = (format_number(perplexities[name], ".2f") for name in ("ngram", "mixture"))
        use = ", ".join(facts["ngram"]["components"]) if run.has_mixture else "not used; option --ngram-mixture"
        yield "n-grams", f"{counts}, mixture with the model {mixture} ({use})"
    row = facts.get("completion") or {}
    if row.get("mrr_known") is not None:
        baselines = f"model alone {row['mrr_model']:.3f}, known texts alone {row['mrr_known']:.3f}"
        gain = Interval.from_row(row, "gain_over_known")
        over_known = f"; gain over known texts {gain.to_text('.3f')}" if gain else ""
        yield "completion", f"{row['mrr']:.3f} mean reciprocal rank ({baselines}){over_known}"
        if row["perplexity_change"] is not None:
            yield "learning", f"{-row['perplexity_change']:+.1%} gain in perplexity from learning users"


def write_card(run: Run) -> None:
    """Write the model card of a finished training."""
    text = _card(run)
    files.write(run.folder / CARD, f"{text}{DIGEST_MARK}{_digest(text)}")


def has_unedited_card(run: Run) -> bool:
    """Return whether the folder has a model card as `write_card` wrote it; a person may have edited it."""
    path = run.folder / CARD
    text, _, digest = (path.read_text("utf-8", "replace") if path.exists() else "").rpartition(DIGEST_MARK)
    return digest == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] + " -->\n"


def _card(run: Run) -> str:
    """Return the model card as Markdown, with metadata that the hub of Hugging Face reads."""
    lines = ["library_name: factorcell", "pipeline_tag: text-generation", f"tags: {json.dumps(TAGS)}"]
    backbone = run.config.backbone
    if isinstance(backbone, HuggingFaceOptions) and HUB_NAME.fullmatch(backbone.base):
        lines.append(f"base_model: {json.dumps(backbone.base)}")
    return "\n".join(["---", *lines, "---", "", render_card(run)])


def render_card(run: Run) -> str:
    """Return the model card as Markdown, without its metadata."""
    facts = [f"- {label}: {escape_markdown(text)}" for label, text in _card_facts(run)]
    results = saved_results.measurements(saved_results.read(run.folder))
    rows = [f"| {escape_markdown(row.table)} | {escape_markdown(row.measure)} | {row.value} |" for row in results]
    parts = [
        f"# {escape_markdown(run.folder.resolve().name)}",
        "\n".join(facts),
        "## Results",
        "\n".join(["| table | measure | value |", "|---|---|---|", *rows]),
        "## Use",
        _usage_example(run),
    ]
    return "\n\n".join(parts) + "\n"


def _card_facts(run: Run) -> list[tuple[str, str]]:
    facts, unit, config = training_facts(run.folder), run.tokenizer.unit, public_config(run.config)
    rows = []
    if facts:
        rows.append(("texts", f"{facts['texts']:,} ({facts['targets']:,} {unit}s) from {facts['source']}"))
    columns = ", ".join(variable.describe() for variable in run.schema.variables) or "none"
    rows += [("vocabulary", f"{len(run.tokenizer):,} {unit}s"), ("columns", columns), *model_facts(run)]
    options = [name for name, value in asdict(config.backbone).items() if value and name != "kind"]
    used = used_options(options, config, run.schema)
    rows.append(("backbone", f"{config.backbone.kind}, {config.format_options(used)}"))
    if finetuned := facts.get("finetuned"):
        rows.append(("fine-tuned from", PurePath(finetuned["from"]).name))
    if automatic := facts.get("chosen"):
        rows.append(("chosen automatically", config.format_options(automatic)))
    return [*rows, *([steps_fact(run)] if run.log() else []), *result_facts(run)]


def _usage_example(run: Run) -> str:
    # The columns that an example leaves out get their expected values; the card does not name a user.
    columns = [variable for variable in run.schema.variables if variable.source_column != run.config.data.user]
    context = {variable.source_column: _example_value(variable) for variable in columns if not variable.is_all_rare}
    arguments = f"['...'], context={context!r}" if context else "['...']"
    source = f"from factorcell import Run\n\nRun.open({run.folder.resolve().name!r}).score({arguments})"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", source)), default=0))
    return f"{fence}python\n{source}\n{fence}"


def escape_markdown(value: object) -> str:
    """Escape a text from a table so that Markdown shows it literally, without markup, HTML or links."""
    text = MARKDOWN_CHARACTERS.sub(r"\\\g<0>", escape_hidden(str(value)).strip())
    text = LISTS_AND_LINKS.sub(lambda match: match[0][:-1] + "\\" + match[0][-1], text)
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _example_value(variable: Variable) -> Any:
    if variable.kind == "vector":
        return [round(mean, 3) for mean in variable.means]
    if variable.kind == "text":
        return variable.values[0]
    if variable.kind == "prompt":
        return "..."
    if variable.kind in TIME_KINDS:
        return "2026-11-21T15:55"
    return variable.values[1] if variable.values[1:] else float(f"{variable.mean:.4g}")
