"""The model card of a run in Markdown, which describes the model, its training data, its training and its results."""

import re
from dataclasses import asdict
from typing import Any

from factorcell import files
from factorcell.data.schema import TIME_KINDS, Variable
from factorcell.escapes import escape_hidden
from factorcell.finite import format_number, is_number
from factorcell.model import saved_results
from factorcell.model.run import Run, training_facts
from factorcell.model.saved_results import Measurement

# Characters with a meaning in Markdown.
MARKDOWN_CHARACTERS = re.compile(r"[\\`*_\[\]|~#$@>]|^[-+=]")
# Beginnings of lists and links; the last character of a match is escaped.
LISTS_AND_LINKS = re.compile(r"^\d+[.)]|\w:(?=//)|www\.", re.IGNORECASE)


def write(run: Run) -> None:
    """Write the model card as README.md to the run folder."""
    files.write(run.folder / "README.md", render(run))


def render(run: Run) -> str:
    """Return the model card as Markdown."""
    parts = [
        f"# {escape_markdown(run.folder.name)}",
        _model(run),
        "## Trained on",
        _training(run),
        "## Results",
        _results(run),
        "## Use",
        _use(run),
    ]
    return "\n\n".join(parts) + "\n"


def _model(run: Run) -> str:
    model, share = run.config.model, run.model.backbone.adapted_share()
    adapters, biases = (" + ".join(names) or "none" for names in (model.adapt, model.output_bias))
    of_parameters = "" if share is None else f", {share:.2%} of its parameters"
    backbone = ", ".join(f"{name} {value}" for name, value in asdict(run.config.backbone).items() if value)
    return (
        f"A language model of {run.model.parameter_count():,} parameters with the tokenizer "
        f"{run.config.tokenizer.kind}, embeddings of {model.embedding_size} and a backbone ({backbone}). "
        f"Adapters of the backbone: {adapters} (rank {model.rank}{of_parameters}); "
        f"adapted softmax biases: {biases}."
    )


def _training(run: Run) -> str:
    facts = training_facts(run.folder)
    lines = []
    if facts:
        lines.append(f"- {facts['texts']:,} texts, {facts['targets']:,} targets, from {code_span(facts['source'])}")
    if automatic := facts.get("chosen"):
        lines.append(f"- chosen automatically: {code_span(run.config.format_options(automatic))}")
    if finetuning := facts.get("finetuned"):
        moved_parts = ", ".join(
            f"{row['moved']:,} of {row['values']:,} values of {escape_markdown(row['part'])}"
            for row in finetuning["moved"]
        )
        lines.append(
            f"- fine-tuned from {code_span(finetuning['from'])} (l1 {finetuning['l1']:g}): {moved_parts} moved"
        )
    for row in facts.get("sparse_bias", ()):
        share = row["nonzero"] / max(1, row["coefficients"])
        counts = f"{row['nonzero']:,} of {row['coefficients']:,} coefficients of {escape_markdown(row['variable'])}"
        lines.append(f"- sparse softmax bias: {counts} are not zero ({share:.2%})")
    lines.append(
        f"- vocabulary of {len(run.tokenizer):,} tokens (seen at least {run.config.tokenizer.min_count} times)"
    )
    lines += [f"- {escape_markdown(variable.describe())}" for variable in run.schema.variables]
    if run.config.training.canaries:
        canaries = f"{run.config.training.canaries:,} canaries (random texts)"
        lines.append(f"- with {canaries}: use this run only to measure memorization")
    log = run.log()
    if log:
        last = log[-1]
        lines.append(
            f"- {last['step']:,} steps, {last['tokens']:,} targets seen, {last['seconds'] / 60:.1f} minutes, "
            f"seed {run.config.training.seed}"
        )
    return "\n".join(lines)


def _results(run: Run) -> str:
    best = run.best_evaluation()
    lines = ["| table | measure | value |", "|---|---|---|"]
    if best:
        lines.append(f"| development | perplexity | {format_number(best['perplexity'], '.2f')} |")
        lines.append(f"| development | perplexity, known targets | {format_number(best['perplexity_known'], '.2f')} |")
        if is_number(bits := best.get("bits_per_byte")):
            bound = bool(best.get("bits_per_byte_bound"))
            result = Measurement("development", "bits per byte", bits, is_lower_bound=bound)
            lines.append(f"| development | {result.measure} | {_value(result)} |")
    for result in saved_results.latest_measurements(saved_results.read(run.folder)):
        lines.append(f"| {escape_markdown(result.table)} | {escape_markdown(result.measure)} | {_value(result)} |")
    return "\n".join(lines)


def _value(result: Measurement) -> str:
    interval = "" if result.low is None or result.high is None else f" ({result.low:.4g} to {result.high:.4g})"
    return f"{'at least ' if result.is_lower_bound else ''}{result.value:.4g}{interval}"


def _use(run: Run) -> str:
    data = run.config.data
    row = {data.text: "..."} | {variable.source_column: _example(variable) for variable in run.schema.variables}
    source = f"from factorcell import Run\n\nRun.open({str(run.folder)!r}).score({row!r})"
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
    edge = " " if text[:1] in "` " or text[-1:] in "` " else ""
    return f"{fence}{edge}{text}{edge}{fence}"


def _longest_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _example(variable: Variable) -> Any:
    if variable.kind == "vector":
        return [round(mean, 3) for mean in variable.means]
    if variable.kind == "text":
        return variable.values[0]
    if variable.kind in TIME_KINDS:
        return "2026-11-21T15:55"
    return variable.values[1] if variable.values[1:] else float(f"{variable.mean:.4g}")
