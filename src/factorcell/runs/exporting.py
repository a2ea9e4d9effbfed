"""Export of a run with a Transformer in one context, as files that other programs read.

| format | files | readers |
|---|---|---|
| lora | adapter_config.json, adapter_model.safetensors | PEFT; without biases also vLLM |
| merged | config.json, model.safetensors, and a tokenizer of pieces | transformers, vLLM, and converters to GGUF |
| gguf-lora | adapter.gguf | llama.cpp |
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorcell.data.columns.values import category_name_or_none, is_missing
from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.errors import UserError, check_choice
from factorcell.io import files
from factorcell.io.findings import LOG
from factorcell.options.limits import EXPORT_FORMATS
from factorcell.runs import lora_files, merged_model
from factorcell.runs.fixed_context import FixedContext
from factorcell.runs.model_card import escape_markdown, has_mixture
from factorcell.runs.run import Run

LIBRARIES = {"lora": "peft", "merged": "transformers", "gguf-lora": "llama.cpp"}  # what reads a format
HELD_OUT_SHARE = 0.5  # share of the texts of --approximate that measure the approximation; the others fit it
ROUNDED = (
    "the weights are rounded to bfloat16, the type of the base of the run (--precision), so the logits differ "
    "slightly from those of the run"
)
OTHER_BASES = (
    "the run has its linear maps in bfloat16 (--precision), and all else in float32, so the logits of a base of a "
    "single type differ slightly from those of the run"
)


def export(
    run: Run,
    folder: str | Path,
    *,
    to: str = "lora",
    context: Mapping[str, Any] | None = None,
    approximate: Any = None,
    unknown: str = "error",
) -> None:
    """Write a run with a Transformer in one context as files of another program.

    The exported model gives the same logits as the neural model of the run for the same token ids.

    Args:
        run: The run.
        folder: The folder to write, which does not exist or is empty.
        to: The format: "lora", a LoRA of PEFT; "merged", a model of transformers; "gguf-lora", a LoRA of llama.cpp.
        context: A value for each context column, such as `{"stars": 5}`; other columns have their expected values.
        approximate: A table of texts; with it, changes of biases that not all readers of the format support are left
            out, or approximated in the output matrix of a merged model, and the effect on the perplexity of these
            texts is reported.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Raises:
        UserError: The folder is not empty, the context is not valid, or the format cannot store a part of the run.
    """
    check_choice("format", to, EXPORT_FORMATS)
    files.check_new(folder)
    fixed = FixedContext.of(run, context or {}, unknown)
    fixed, remarks = _with_storable_biases(fixed, to, approximate)
    with _complete_folder(Path(folder)) as partial:
        if to == "lora":
            lora_files.write_peft(fixed, partial)
        elif to == "gguf-lora":
            lora_files.write_gguf(fixed, partial)
        else:
            merged_model.write_merged_model(fixed, partial)
        pieces = run.tokenizer if to == "merged" and isinstance(run.tokenizer, BpeTokenizer) else None
        if pieces is not None:
            pieces.to_transformers(fixed.vocabulary_size, fixed.start_id).save_pretrained(partial)
        elif to == "merged":
            remarks.append("only a tokenizer of pieces of words is exported; send the ids of the tokens")
        remarks.append(_begin_of_texts(fixed, pieces is not None))
        if fixed.backbone.options.is_frozen_in_bfloat16:
            remarks.append(ROUNDED if to == "merged" else OTHER_BASES)
        if has_mixture(run):
            remarks.append("the exported model is the neural model, without the mixture with n-gram counts")
        files.write(partial / "README.md", _render_card(fixed, to, context or {}, remarks))
    for remark in remarks:
        LOG.info("%s", remark)


def _with_storable_biases(fixed: FixedContext, to: str, table: Any) -> tuple[FixedContext, list[str]]:
    """Return the context with biases that the format can store, and remarks about the others.

    Raises:
        UserError: The format cannot store a change, and there is no `table` to approximate it and measure the effect.
    """
    run, shifts = fixed.run, fixed.conditions.shifts
    is_low_rank = fixed.backbone.is_frozen and all(shift.scale is None for shift in shifts)
    if to == "merged":
        has_map_biases, has_output_bias = merged_model.find_biases_without_place(fixed)
    else:
        lora_files.check_run(fixed, is_gguf=to == "gguf-lora")
        has_map_biases, has_output_bias = any(shift.bias is not None for shift in shifts), fixed.changes_output_bias
    names = ["its maps"] * has_map_biases + ["the output layer"] * has_output_bias
    if not names:
        return fixed, [] if table is None else [f"approximate: not needed, because {to} stores all changes exactly"]
    if to == "lora" and table is None:
        return fixed, []
    if table is None:
        raise UserError(
            f"{run.folder}: {to} cannot store the changes of the biases of {' and '.join(names)}"
            + ("; lora for PEFT can" if is_low_rank else ""),
            (("approximate", "TABLE"),),
            "to leave out or approximate them and report the effect on the perplexity of the texts in TABLE",
        )
    texts = run.prepare(table, optional=tuple(variable.name for variable in run.schema.variables))
    storable = fixed.without_map_biases() if has_map_biases else fixed
    if has_output_bias and to == "merged":
        fitted_texts, texts = texts.split(HELD_OUT_SHARE, seed=0)
        storable = storable.with_output_bias_in_matrix(fitted_texts)
    elif has_output_bias:
        storable = storable.without_output_bias()
    before, after = fixed.perplexity(texts), storable.perplexity(texts)
    change = f"perplexity {after:.2f} instead of {before:.2f} ({after / before - 1:+.1%})"
    return storable, [f"without exact changes of the biases of {' and '.join(names)}: {change}"]


@contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its complete files to `folder`, the config, which identifies the format, last.

    The temporary folder is in `folder`, which may be on another disk than its parent.
    """
    files.create_new_folder(folder)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        yield Path(partial)
        for path in sorted(Path(partial).iterdir(), key=lambda path: path.name.endswith("config.json")):
            path.replace(folder / path.name)


def _begin_of_texts(fixed: FixedContext, has_tokenizer: bool) -> str:
    """Return a remark that says how texts must begin for the exported model, as in training."""
    start, names = fixed.run.tokenizer.tokens[fixed.start_id], json.dumps(fixed.names, ensure_ascii=False)
    if not fixed.name_ids:
        if has_tokenizer:
            return "the tokenizer puts the start token before each text"
        return f"put the token {start} (id {fixed.start_id}) before each text, as in training"
    ids = [fixed.start_id, *fixed.name_ids, fixed.start_id]
    if has_tokenizer and fixed.has_exact_names:
        call = f"call the tokenizer with two texts, {names} and the text; it puts the start token before both"
        return f"{call}; to generate a text from its beginning, begin with the tokens {ids}"
    return f"put the tokens {ids} before each text, as in training: {start}, {names} and {start}"


def _render_card(fixed: FixedContext, to: str, context: Mapping[str, Any], remarks: list[str]) -> str:
    """Return a model card, which names the run, the context and what a reader must know."""
    values = ", ".join(_describe_value(fixed.run, column, context[column]) for column in context)
    base = "" if to == "merged" else f"base_model: {json.dumps(fixed.backbone.options.base)}\n"
    lines = [
        f"---\nlibrary_name: {LIBRARIES[to]}\n{base}---\n# {escape_markdown(fixed.run.folder.name)}",
        f"The model of this run in the context: {escape_markdown(values or 'no specified values')}.",
        "\n".join(f"- {escape_markdown(remark)}" for remark in remarks),
    ]
    return "\n\n".join(lines) + "\n"


def _describe_value(run: Run, column: str, value: Any) -> str:
    """Return a column with its value, and whether training saw the value."""
    if is_missing(value):
        return f"{column} without a value"
    values = next((variable.values for variable in run.schema.categories if variable.source_column == column), None)
    is_new = values is not None and category_name_or_none(value) not in values[1:]
    return f"{column} {value}" + (" (never seen in training)" if is_new else "")
