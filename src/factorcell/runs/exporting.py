"""Export of a run as files that other programs read: a Transformer in one context, or a recurrent run (`onnx_graphs`).

| format | files | readers |
|---|---|---|
| lora | adapter_config.json, adapter_model.safetensors | PEFT; without biases also vLLM |
| merged | config.json, model.safetensors, and a tokenizer of pieces | transformers, vLLM, and converters to GGUF |
| gguf-lora | adapter.gguf | llama.cpp |
| onnx | fold.onnx, step.onnx, model.json, schema.json | ONNX Runtime |

A merged model has the matrices of the maps and of the output layer, and the biases of the maps, as its weights. The
output layers of most architectures have no bias t (V,); the output matrix then approximates it (`fixed_context`).

A LoRA (`lora_files`) needs a frozen base. Changes of biases become its biases, which llama.cpp and vLLM do not read.
The change of the output bias is the bias of a LoRA of the output layer whose matrices are zero.

Shapes: D inputs, O outputs, R rank, V vocabulary.
"""

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from factorcell.data.tokenizers.bpe import BpeTokenizer
from factorcell.errors import UserError, check_choice
from factorcell.hf.context_base import BIAS_SETTINGS
from factorcell.hf.lora_files import LowRankChange, expert_problem, low_rank_change, write_lora
from factorcell.io import files
from factorcell.io.extras import import_extra
from factorcell.io.findings import LOG
from factorcell.io.pretrained import first_line, quiet, transformers
from factorcell.options.limits import EXPORT_FORMATS
from factorcell.runs.fixed_context import NEVER, FixedContext
from factorcell.runs.onnx_graphs import check_recurrent, write_graphs
from factorcell.runs.run import Run
from factorcell.runs.summary import escape_markdown

LIBRARIES = {"lora": "peft", "merged": "transformers", "gguf-lora": "llama.cpp"}  # what reads a format
BFLOAT16 = "the base of the run is in bfloat16 (--precision), so the logits differ slightly from those of the run"
HELD_OUT_SHARE = 0.5  # share of the texts that measure the approximation of the output bias; the others fit it
PROBE_TOKENS = 8  # length of the text that compares the written model with the run
MAX_DIFFERENCE = 0.05  # largest difference of probabilities in this text; bfloat16 rounds
GGUF_FILE = "adapter.gguf"
# Type of a model in `transformers` -> the name of the architecture in GGUF files, and whether llama.cpp stores the rows
# of the query and key maps in another order.
GGUF_ARCHITECTURES = {
    "llama": ("llama", True),
    "mistral": ("llama", True),
    "qwen2": ("qwen2", False),
    "qwen3": ("qwen3", False),
    "gemma": ("gemma", False),
    "gpt2": ("gpt2", False),
    "phi3": ("phi3", False),
    "starcoder2": ("starcoder2", False),
}


def export(
    run: Run,
    folder: str | Path,
    *,
    to: str = "lora",
    context: Mapping[str, Any] | None = None,
    approximate: Any = None,
    unknown: str = "error",
) -> None:
    """Write a run as files of another program: a Transformer in one context, or a recurrent run for all contexts.

    The exported model gives the same probabilities as the neural model of the run for the same token ids.

    Args:
        run: The run.
        folder: The folder to write, which does not exist or is empty.
        to: The format: "lora", a LoRA of PEFT; "merged", a model of transformers; "gguf-lora", a LoRA of llama.cpp;
            "onnx", ONNX graphs of a recurrent run, which read contexts.
        context: A value for each context column, such as `{"stars": 5}`; other columns have their expected values.
        approximate: A table of texts, only for "merged"; if the architecture has no place for the change of the output
            bias, it is approximated in the output matrix, and the effect on the perplexity of these texts is reported.
        unknown: The policy for values that training never saw: "group", "expected" or "error".

    Raises:
        UserError: The folder is not empty, the context is not valid, or the format cannot store a part of the run.
    """
    check_choice("format", to, EXPORT_FORMATS)
    files.check_new(folder)
    if to == "onnx":
        check_recurrent(run)
        if context or approximate is not None:
            raise UserError("onnx: expected neither context nor approximate, because the exported graphs read contexts")
        with _complete_folder(Path(folder)) as partial:
            write_graphs(run, partial)
        return
    fixed = FixedContext.of(run, context or {}, unknown)
    remarks = list[str]()
    if to == "merged":
        fixed, remarks = with_storable_biases(fixed, approximate)
    elif approximate is not None:
        raise UserError(f"approximate: expected the format merged, which has no place for some biases, got {to}")
    else:
        check_run(fixed, is_gguf=to == "gguf-lora")
    with _complete_folder(Path(folder)) as partial:
        if to == "lora":
            write_peft(fixed, partial)
        elif to == "gguf-lora":
            write_gguf(fixed, partial)
        else:
            write_merged_model(fixed, partial)
        pieces = run.tokenizer if to == "merged" and isinstance(run.tokenizer, BpeTokenizer) else None
        if pieces is not None:
            pieces.to_transformers(fixed.vocabulary_size, fixed.start_id).save_pretrained(partial)
        elif to == "merged":
            remarks.append("only a tokenizer of pieces of words is exported; send the ids of the tokens")
        remarks.append(_begin_of_texts(fixed, pieces is not None))
        if fixed.backbone.options.is_frozen_in_bfloat16:
            remarks.append(BFLOAT16)
        if run.has_mixture:
            remarks.append("the exported model is the neural model, without the mixture with n-gram counts")
        files.write(partial / "README.md", _render_card(fixed, to, context or {}, remarks))
    for remark in remarks:
        LOG.info("%s", remark)


@contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in `folder`, and then move its complete files there, the config last."""
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
    ids, tokenizer = [fixed.start_id, *fixed.name_ids, fixed.start_id], fixed.run.tokenizer
    has_exact_names = tokenizer.encode(tokenizer.split(fixed.names)) == [*fixed.name_ids]  # long names are cut
    if has_tokenizer and has_exact_names:
        call = f"call the tokenizer with two texts, {names} and the text; it puts the start token before both"
        return f"{call}; to generate a text from its beginning, begin with the tokens {ids}"
    return f"put the tokens {ids} before each text, as in training: {start}, {names} and {start}"


def _render_card(fixed: FixedContext, to: str, context: Mapping[str, Any], remarks: list[str]) -> str:
    """Return a model card, which names the run, the context and what a reader must know."""
    values = ", ".join(f"{column} {value}" for column, value in context.items())
    base = "" if to == "merged" else f"base_model: {json.dumps(fixed.backbone.options.base)}\n"
    lines = [
        f"---\nlibrary_name: {LIBRARIES[to]}\n{base}---\n# {escape_markdown(fixed.run.folder.name)}",
        f"The model of this run in the context: {escape_markdown(values or 'no specified values')}.",
        "\n".join(f"- {escape_markdown(remark)}" for remark in remarks),
    ]
    return "\n\n".join(lines) + "\n"


def architecture(fixed: FixedContext, **settings: Any) -> Any:
    """Return the model of `transformers` that a run adapts, on the meta device; `settings` change its config."""
    library, config = transformers(), copy.deepcopy(fixed.backbone.base.config)
    if settings and config.get_text_config(decoder=True) is not config:
        raise UserError(f"{fixed.run.folder}: merged expects a base that reads only texts; use lora")
    for name, value in settings.items():
        setattr(config, name, value)
    if hasattr(config, "quantization_config"):  # of a base in GGUF, whose weights have become floats
        del config.quantization_config
    with quiet(), torch.device("meta"):
        model = library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.architectures = [type(model).__name__]
    return model


def path_of(model: nn.Module, module: nn.Module) -> str:
    """Return the path of a module of a model."""
    return str(next(path for path, other in model.named_modules() if other is module))


def has_bias(module: nn.Module) -> bool:
    """Return whether a linear map has a bias."""
    return getattr(module, "bias", None) is not None


def with_storable_biases(fixed: FixedContext, table: Any) -> tuple[FixedContext, list[str]]:
    """Return the context with an output bias that the architecture can store, and a remark about an approximation."""
    model, run = merged_architecture(fixed), fixed.run
    for projection, shift in fixed.maps():
        if shift.bias is not None and not has_bias(model.get_submodule(projection.path)):
            problem = f"the map {projection.path} of the architecture has no bias, which concat changes"
            raise UserError(f"{run.folder}: merged cannot store the run: {problem}; use lora, or train without concat")
    if not fixed.changes_output_bias or has_bias(model.get_output_embeddings()):
        return fixed, []
    if table is None:
        raise UserError(
            f"{run.folder}: merged cannot store the change of the bias of the output layer",
            (("approximate", "TABLE"),),
            "to approximate it and report the effect on the perplexity of the texts in TABLE",
        )
    texts = run.prepare(table, optional=tuple(variable.name for variable in run.schema.variables))
    fitted_texts, held_out = texts.split(HELD_OUT_SHARE, seed=0)
    storable = fixed.with_output_bias_in_matrix(fitted_texts)
    before, after = fixed.perplexity(held_out), storable.perplexity(held_out)
    change = f"perplexity {after:.2f} instead of {before:.2f} ({after / before - 1:+.1%})"
    return storable, [f"with an approximation of the bias of the output layer: {change}"]


def write_merged_model(fixed: FixedContext, folder: Path) -> None:
    """Write the model of a run in one context, which has a place for all biases, and compare it with the run."""
    model = merged_architecture(fixed)
    model.config.save_pretrained(folder)
    tensors = save(_tensors(fixed, model), {"format": "pt"})
    files.write(folder / "model.safetensors", tensors)
    _compare_with_run(fixed, folder)


def merged_architecture(fixed: FixedContext) -> Any:
    """Return the architecture of the merged model, whose maps have a bias if the context changes one."""
    settings: dict[str, Any] = {
        "vocab_size": fixed.vocabulary_size,
        "bos_token_id": fixed.start_id,
        "eos_token_id": fixed.run.model.specials.end,
        "pad_token_id": None,
        "tie_word_embeddings": fixed.output_matrix.data_ptr() == fixed.run.model.embedding.data_ptr(),
        "dtype": fixed.backbone.maps.projections[0].weight.dtype,
    }
    if any(shift.bias is not None for _, shift in fixed.maps()):
        settings |= {name: True for name in BIAS_SETTINGS if hasattr(fixed.backbone.base.config, name)}
    return architecture(fixed, **settings)


def _tensors(fixed: FixedContext, model: Any) -> dict[str, Tensor]:
    """Return the weights of the merged model by name, in the number type of its config."""
    size, names = fixed.vocabulary_size, set(model.state_dict())
    inputs, outputs = (path_of(model, layer) for layer in (model.get_input_embeddings(), model.get_output_embeddings()))
    tensors = {f"{model.base_model_prefix}.{name}": tensor for name, tensor in fixed.backbone.base.state_dict().items()}
    tensors = {name: tensor.detach().cpu().float() for name, tensor in tensors.items() if name in names}
    for projection, shift in fixed.maps():
        path, plain = projection.path, projection.plain_linear(shift)
        tensors |= {f"{path}.{name}": values.detach() for name, values in plain.named_parameters()}
        if has_bias(model.get_submodule(path)) and not has_bias(plain):
            tensors[f"{path}.bias"] = torch.zeros(projection.shape()[1])
    tensors[f"{inputs}.weight"] = fixed.run.model.embedding.detach()[:size].cpu()
    if has_bias(model.get_output_embeddings()):
        tensors[f"{outputs}.bias"] = fixed.output_bias[:size].cpu()
    if not model.config.tie_word_embeddings:
        tensors[f"{outputs}.weight"] = fixed.output_matrix[:size].float().cpu()
    return {name: tensor.to(model.config.dtype).cpu().contiguous() for name, tensor in tensors.items()}


def _compare_with_run(fixed: FixedContext, folder: Path) -> None:
    """Raise `UserError` unless the model in `folder` gives the probabilities of the run for a random text."""
    library, run = transformers(), fixed.run
    size, start = fixed.vocabulary_size, fixed.start_id
    random = torch.randint(size, (PROBE_TOKENS,), generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([random.new_tensor([start]), random])[None]
    names = tokens.new_tensor([[start, *fixed.name_ids] if fixed.name_ids else []])
    where = f"{run.folder}: the architecture {fixed.backbone.base.config.model_type} cannot be merged"
    try:
        with quiet():
            model = library.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # architectures refuse weights with errors of many kinds
        raise UserError(f"{where} ({first_line(error)})") from None
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.cat([names, tokens], dim=1)).logits[0, names.shape[1] :].float()
        expected = fixed.log_probabilities(fixed.vectors(tokens.to(run.device))[0])[:, :size].cpu()
    if start != run.model.specials.end:
        for scores in (logits, expected):
            scores[:, start] = -torch.inf  # the start token is never predicted
    difference = float((logits.softmax(-1) - expected.softmax(-1)).abs().max())
    if not difference <= MAX_DIFFERENCE:
        raise UserError(f"{where}: its probabilities differ by {difference:.2g} from those of the run")


def low_rank_changes(fixed: FixedContext, model: Any) -> list[LowRankChange]:
    """Return the change of each map, and of the output layer if its bias changes.

    Tokens that only the output layer of the base has, such as padding of its table, get the bias `NEVER`.
    """
    changes = [low_rank_change(projection, shift) for projection, shift in fixed.maps()]
    if fixed.changes_output_bias:
        layer = model.get_output_embeddings()
        size, width = layer.weight.shape
        change = fixed.output_change.float()[:size]
        bias = torch.cat([change, change.new_full((size - len(change),), NEVER)])
        matrices = change.new_zeros(1, width), change.new_zeros(size, 1)
        changes.append(LowRankChange(path_of(model, layer), *matrices, bias))
    return changes


def write_peft(fixed: FixedContext, folder: Path) -> None:
    """Write a LoRA in the format of the library PEFT to `folder`; it has biases only if the context changes biases."""
    changes = low_rank_changes(fixed, architecture(fixed))
    write_lora(changes, folder, base=fixed.backbone.options.base)


def write_gguf(fixed: FixedContext, folder: Path) -> None:
    """Write the low-rank changes of matrices as the LoRA of llama.cpp, `adapter.gguf`, to `folder`."""
    gguf = import_extra("gguf", "gguf-lora", "transformers")
    model = architecture(fixed)
    config, changes = model.config, low_rank_changes(fixed, model)
    gguf_name, is_reordered = GGUF_ARCHITECTURES[config.model_type]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == gguf_name)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}
    writer = gguf.GGUFWriter(folder / GGUF_FILE, gguf_name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(changes[0].a.shape[0]))
    for change in changes:
        name, last_name = names.get_name(change.path), change.path.rpartition(".")[2]
        if name is None:
            raise UserError(f"gguf-lora: the map {change.path} has no name in GGUF files; use lora or merged")
        a, b = (tensor.detach().float().cpu().numpy() for tensor in (change.a, change.b))
        if is_reordered and last_name in heads:
            b = interleave_halves(b, heads[last_name] or config.num_attention_heads)
        writer.add_tensor(f"{name}.weight.lora_a", np.ascontiguousarray(a))
        writer.add_tensor(f"{name}.weight.lora_b", np.ascontiguousarray(b))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_run(fixed: FixedContext, *, is_gguf: bool) -> None:
    """Raise `UserError` unless a LoRA of the base can store the changes; `is_gguf`: a LoRA of llama.cpp."""
    where, config = fixed.run.folder, fixed.backbone.base.config.get_text_config(decoder=True)
    if not fixed.backbone.is_frozen:
        raise UserError(f"{where}: a LoRA needs a frozen pretrained base, but training changed all weights; use merged")
    if any(shift.scale is not None for _, shift in fixed.maps()):
        raise UserError(f"{where}: a LoRA cannot store the adapter scale, whose change has no low rank; use merged")
    if fixed.run.model.specials.end >= fixed.run.tokenizer.known_count:
        raise UserError(f"{where}: its base has no end token, so a LoRA cannot end a text; use merged")
    if problem := expert_problem(fixed.backbone.base, (projection for projection, _ in fixed.maps())):
        raise UserError(f"{where}: {problem}; use merged, or train with --target-modules without these maps")
    if is_gguf and (fixed.changes_output_bias or any(shift.bias is not None for _, shift in fixed.maps())):
        problem = "gguf-lora cannot store biases, which concat and the softmax bias change"
        raise UserError(f"{where}: {problem}; use lora or merged, or train without them")
    if is_gguf and config.model_type not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise UserError(f"gguf-lora: expected a base of the architecture {known}, got {config.model_type}; use merged")


def interleave_halves(rows: Any, heads: int) -> Any:
    """Return the `rows` of a query or key map in the order of llama.cpp.

    `transformers` rotates row i of the first half of each head with row i of the second half, llama.cpp adjacent rows.
    """
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
