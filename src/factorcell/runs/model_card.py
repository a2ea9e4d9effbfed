"""The model card of a run in Markdown, which describes the model, its training data, its training and its results.

The end of a training writes the card; later results are in results.jsonl only. The card begins with metadata in YAML,
which the hub of Hugging Face reads. It has names of files and folders but no
paths, and no ids of users, so that it can be published.
"""

import json
import re
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from factorcell.adapters.adapters import weight_adapters
from factorcell.config import INPUT_ADAPTERS, HuggingFaceOptions
from factorcell.data.columns.schema import Variable
from factorcell.data.columns.values import TIME_KINDS
from factorcell.io import files
from factorcell.io.output import escape_hidden
from factorcell.io.pretrained import HUB_NAME
from factorcell.ngram.mixture import FILE as MIXTURE_FILE
from factorcell.runs import saved_results
from factorcell.runs.run import Run, training_facts
from factorcell.runs.used_options import used_options

# Characters with a meaning in Markdown.
MARKDOWN_CHARACTERS = re.compile(r"[\\`*_\[\]|~#$@>]|^[-+=]")
# Beginnings of lists and links. `escape_markdown` escapes the last character of a match.
LISTS_AND_LINKS = re.compile(r"^\d+[.)]|\w:(?=//)|www\.", re.IGNORECASE)
FILE = "README.md"
TAGS = ("language-model", "context")


def write(run: Run) -> None:
    """Write the model card of a finished training to the run folder."""
    files.write(run.folder / FILE, f"{_metadata(run)}\n{render(run)}")


def _metadata(run: Run) -> str:
    """Return the metadata of the card for the hub; the license and the data sets are up to the user."""
    lines = ["library_name: factorcell", "pipeline_tag: text-generation", f"tags: {json.dumps(TAGS)}"]
    backbone = run.config.backbone
    if isinstance(backbone, HuggingFaceOptions) and HUB_NAME.fullmatch(backbone.base):
        lines.append(f"base_model: {json.dumps(backbone.base)}")
    return "\n".join(["---", *lines, "---", ""])


def _name(run: Run) -> str:
    """Return the name of the run folder, also if its path is relative."""
    return run.folder.resolve().name


def render(run: Run) -> str:
    """Return the model card as Markdown, without its metadata."""
    results = saved_results.measurements(saved_results.read(run.folder))
    rows = [f"| {escape_markdown(row.table)} | {escape_markdown(row.measure)} | {row.value} |" for row in results]
    parts = [
        f"# {escape_markdown(_name(run))}",
        _describe_model(run),
        "## Trained on",
        _describe_training(run),
        "## Results",
        "\n".join(["| table | measure | value |", "|---|---|---|", *rows]),
        "## Use",
        _usage_example(run),
    ]
    return "\n\n".join(parts) + "\n"


def _describe_model(run: Run) -> str:
    options = asdict(run.config.backbone)
    option_names = [name for name in used_options(options, run.config, run.schema) if options[name]]
    if "base" in options:
        # The path of a file or folder is private; a model on the hub has a public name.
        options["base"] = options["base"] if HUB_NAME.fullmatch(options["base"]) else PurePath(options["base"]).name
    description = ", ".join(f"{name} {_format_option(options[name])}" for name in option_names)
    sentences = [
        f"A language model of {run.model.describe_size()} with the tokenizer {run.config.tokenizer.kind}, "
        f"embeddings of {run.model.embedding.shape[1]} and a backbone ({escape_markdown(description)})."
    ]
    if run.model.is_adapted:
        sentences.append(f"{describe_adaptation(run)}.")
    else:
        text = describe_missing_context(run)
        sentences.append(f"{escape_markdown(text[:1].upper() + text[1:])}.")
    if has_mixture(run):
        components = training_facts(run.folder).get("ngram", {}).get("components", ())
        names = f" ({', '.join(components)})" if components else ""
        sentences.append(
            f"The run predicts with a mixture of this neural model and n-gram counts of its training texts{names}."
        )
    return " ".join(sentences)


def _format_option(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def describe_adaptation(run: Run) -> str:
    """Return a clause that says which adapters and adapted biases an adapted run has."""
    options, adapted_share = run.config.model, run.model.backbone.adapted_share()
    weight_adapter_names = weight_adapters(options)
    adapters = [name for name in options.adapt if name in (*INPUT_ADAPTERS, *weight_adapter_names)]
    details = [f"{name} {options.rank}" for name in used_options(["rank"], run.config, run.schema)]
    details += [f"{adapted_share:.2%} of its parameters"] if adapted_share else []
    backbone = run.config.backbone
    if isinstance(backbone, HuggingFaceOptions) and used_options(["shared_rank"], run.config, run.schema):
        details += [f"besides a LoRA of rank {backbone.shared_rank}"] if backbone.shared_rank else []
    adapter_names, bias_names = (" + ".join(names) or "none" for names in (adapters, options.output_bias))
    parentheses = f" ({', '.join(details)})" if details else ""
    return f"Adapters of the backbone: {adapter_names}{parentheses}; adapted softmax biases: {bias_names}"


def describe_missing_context(run: Run) -> str:
    """Return a clause that says why the predictions of an unadapted run do not depend on a context."""
    if not run.schema.variables:
        return "no context: this is an unadapted model"
    return f"an unadapted model: it does not read the context columns {', '.join(run.schema.columns())}"


def has_mixture(run: Run) -> bool:
    """Return whether the folder of a run has a mixture, with which the run predicts unless it is opened without it."""
    return (run.folder / MIXTURE_FILE).is_file()


def mixture_perplexity(run: Run) -> float | None:
    """Return the development perplexity of the mixture of a run, by cross-validation; None if it has no mixture."""
    perplexities = training_facts(run.folder).get("ngram", {}).get("perplexity", {})
    return perplexities.get("mixture") if has_mixture(run) else None


def _describe_training(run: Run) -> str:
    facts = training_facts(run.folder)
    lines = []
    if facts:
        lines.append(f"{facts['texts']:,} texts, {facts['targets']:,} targets, from {code_span(facts['source'])}")
    if automatic := facts.get("chosen"):
        lines.append(f"chosen automatically: {code_span(run.config.format_options(automatic))}")
    if finetuning := facts.get("finetuned"):
        moved = [(row["moved"], row["values"], escape_markdown(row["part"])) for row in finetuning["moved"]]
        parts = ", ".join(f"{count:,} of {total:,} values of {part}" for count, total, part in moved)
        base_name = code_span(PurePath(finetuning["from"]).name)
        lines.append(f"fine-tuned from {base_name} (l1 {finetuning['l1']:g}): {parts} moved")
    for row in facts.get("sparse_bias", ()):
        share = row["nonzero"] / max(1, row["coefficients"])
        nonzero = f"{row['nonzero']:,} of {row['coefficients']:,} coefficients of {escape_markdown(row['variable'])}"
        lines.append(f"sparse softmax bias: {nonzero} are not zero ({share:.2%})")
    frequency = "" if run.tokenizer.is_subword else f" (seen at least {run.config.tokenizer.min_count} times)"
    lines.append(f"vocabulary of {len(run.tokenizer):,} tokens{frequency}")
    lines += [escape_markdown(variable.describe()) for variable in run.schema.variables]
    lines += [escape_markdown(run.model.names.describe())] if run.model.names is not None else []
    if log := run.log():
        steps, targets, minutes = log[-1]["step"], log[-1]["tokens"], log[-1]["seconds"] / 60
        passes = f" ({targets / max(1, facts['targets']):.3g} passes)" if facts else ""
        duration = f"{minutes:.1f} minutes of training, seed {run.config.training.seed}"
        lines.append(f"{steps:,} steps, {targets:,} targets seen{passes}, {duration}")
    return "\n".join(f"- {line}" for line in lines)


def _usage_example(run: Run) -> str:
    # The columns that an example leaves out get their expected values; the card does not name a user.
    columns = [variable for variable in run.schema.variables if variable.source_column != run.config.data.user]
    context = {variable.source_column: _example_value(variable) for variable in columns if not variable.is_all_rare}
    arguments = f"['...'], context={context!r}" if context else "['...']"
    source = f"from factorcell import Run\n\nRun.open({_name(run)!r}).score({arguments})"
    fence = "`" * max(3, 1 + _longest_backticks(source))
    return f"{fence}python\n{source}\n{fence}"


def escape_markdown(value: object) -> str:
    """Escape a text from a table so that Markdown shows it literally, without markup, HTML or links."""
    text = MARKDOWN_CHARACTERS.sub(r"\\\g<0>", escape_hidden(str(value)).strip())
    text = LISTS_AND_LINKS.sub(lambda match: match[0][:-1] + "\\" + match[0][-1], text)
    return text.replace("&", "&amp;").replace("<", "&lt;")


def code_span(value: object) -> str:
    """Return `value` as inline code in Markdown."""
    text = escape_hidden(str(value))
    fence = "`" * (1 + _longest_backticks(text))
    # Markdown removes one space at each end, and would read a backtick there as a part of the fence.
    padding = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def _longest_backticks(text: str) -> int:
    """Return the length of the longest sequence of backticks in `text`."""
    return max(map(len, re.findall("`+", text)), default=0)


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
