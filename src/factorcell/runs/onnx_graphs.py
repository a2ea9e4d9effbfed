"""Export of a recurrent run as two ONNX graphs, which programs in other languages run.

    fold    contexts -> conditions, states before the first token
    step    tokens, conditions, states -> log probabilities, states after the tokens

PyTorch traces `LanguageModel.condition` and `LanguageModel.step`, so the graphs compute what the run computes. The
conditions are L and R, because W + L R would take the memory of a matrix per context; the texts of a step may have
different contexts. `assets/onnx.md` describes all inputs and outputs.

Shapes: C contexts, N texts, W words, V vocabulary.
"""

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.adapters.adapters import PARTS_BY_CONTEXT, Shift
from factorcell.adapters.encoder import NumberInputs, VariableEmbeddings, VectorMap, WordBag
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import MISSING, Variable
from factorcell.data.tokenizers.tokenizer import WORD
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.io.extras import import_extra
from factorcell.nn.backbones.cells import CellState
from factorcell.nn.backbones.recurrent import Cell, RecurrentBackbone, RecurrentConditions, RecurrentState
from factorcell.nn.hash_bias import HashBias
from factorcell.nn.language_model import Conditioning, LanguageModel
from factorcell.nn.output import ContextBias, SoftmaxHead
from factorcell.runs.run import Run

FORMAT = 1  # format number of model.json
MAX_BIASES = 2**28  # largest number of biases of a hashed output bias
STATES = ("hidden_", "memory_")  # the names of states begin with these words, and the number of the layer follows
Tensors = dict[str, Tensor]


class PaddedWordBag(nn.Module):
    """A `WordBag` that reads words (C, W), padded with -1, because ONNX has no lists."""

    def __init__(self, bag: WordBag) -> None:
        super().__init__()
        self.bag = bag

    def forward(self, words: Tensor) -> Tensor:
        """Return the embeddings (C, k); a text without words has the mean embedding of all training texts."""
        is_word = (words != MISSING)[:, :, None].to(self.bag.table.dtype)
        total, count = (self.bag.table[words.clamp(min=0)] * is_word).sum(1), is_word.sum(1)
        return torch.where(count > 0, total / count.clamp(min=1).sqrt(), self.bag.shares @ self.bag.table)


class ValueBiases(nn.Module):
    """A `HashBias` as a table with a row for each value of each variable, because ONNX has no lists of pairs."""

    def __init__(self, hashed: HashBias) -> None:
        super().__init__()
        counts = torch.tensor([1 + len(variable.values) for variable in hashed.variables])  # with the missing value
        pairs = hashed.pairs(torch.arange(int(counts.max()))[:, None].minimum(counts - 1) + MISSING)
        self.table = pairs.table(F.embedding(pairs.buckets, hashed.weight))
        self.first_rows = counts.cumsum(0) - counts - MISSING  # of each variable, the row of its value 0

    def forward(self, categories: Tensor) -> Tensor:
        """Return the biases (C, V) of all tokens in contexts with the values `categories` (C, variables)."""
        return F.embedding(categories + self.first_rows, self.table).sum(1)


class Graph(nn.Module):
    """A function of a model and of named tensors, as a module that PyTorch can trace."""

    def __init__(self, model: LanguageModel, function: Callable[[LanguageModel, Tensors], Tensors]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, inputs: Tensors) -> Tensors:
        """Return the outputs of the graph by name."""
        return self.function(self.model, inputs)


def fold(model: LanguageModel, inputs: Tensors, *, user: Variable | None) -> Tensors:
    """Return the conditions of C contexts, and the states before the first token; `user` has learned vectors."""
    categories, override = inputs["categories"], dict[str, Tensor]()
    vectors, words = ([inputs[name] for name in inputs if name.startswith(kind)] for kind in ("vector_", "words_"))
    if user is not None and model.encoder is not None:
        column = model.encoder.schema.categories.index(user)
        saved, learned = model.encoder.embed_category(column, categories[:, column]), inputs["user_vector"]
        override[user.name] = torch.where(learned.isnan(), saved, learned)
    context = Context(categories, inputs["numbers"], tuple(vectors), cast(Any, tuple(words)))
    conditioning = model.fold_head(model.condition(context, override))
    tensors = state_tensors(conditioning.start)
    for layer, shift in enumerate(cast(RecurrentConditions, conditioning.conditions).shifts):
        tensors |= {f"{part}_{layer}": getattr(shift, part) for part in PARTS_BY_CONTEXT}
    tensors["output_bias"] = cast(ContextBias, conditioning.head).bias
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def step(model: LanguageModel, inputs: Tensors) -> Tensors:
    """Return the log probabilities (N, V) of the next tokens, and the states after `tokens` (N,)."""
    rows, shifts, start = inputs["context"], list[Shift](), list[CellState]()
    for layer in range(len(cast(RecurrentBackbone, model.backbone).layers)):
        shifts.append(Shift(**{part: inputs.get(f"{part}_{layer}") for part in PARTS_BY_CONTEXT}).select(rows))
        hidden = inputs[f"hidden_{layer}"]
        start.append(CellState(hidden, inputs.get(f"memory_{layer}", hidden[:, :0])))
    bias = inputs["output_bias"][rows]
    conditions = RecurrentConditions(tuple(shifts), (None,) * len(shifts))
    conditioning = Conditioning(conditions, RecurrentState(start), ContextBias(bias, bias, bias))
    log_probs, state = model.step(inputs["tokens"], conditioning)
    return {"log_probabilities": log_probs, **state_tensors(state, "next_")}


def state_tensors(state: Any, prefix: str = "") -> dict[str, Any]:
    """Return the parts of the state of each layer by name, without those of size 0."""
    cells = [(str(layer), zip(STATES, cell, strict=True)) for layer, cell in enumerate(state)]
    return {prefix + name + layer: part for layer, parts in cells for name, part in parts if part.shape[1]}


def traceable_model(model: LanguageModel) -> LanguageModel:
    """Return a copy of a recurrent model that PyTorch can trace for any number of contexts, texts and words."""
    model = copy.deepcopy(model).cpu().eval()
    model.names = None  # programs send them to the graph step
    for module in list(model.modules()):
        if isinstance(module, Cell):
            module.is_coupled = False  # no compiled code
        elif isinstance(module, (NumberInputs, VectorMap)):
            module.constants = module.constants.view(torch.float32)
        elif isinstance(module, VariableEmbeddings):
            module.texts = nn.ModuleList(map(PaddedWordBag, cast(Any, module.texts)))
        elif isinstance(module, SoftmaxHead) and module.hashed is not None:
            module.hashed = cast(Any, ValueBiases(module.hashed))
    return model


def check_recurrent(run: Run) -> None:
    """Raise `UserError` unless the run can be exported to ONNX, and the packages that do so are installed."""
    head = run.model.head
    if not (isinstance(run.model.backbone, RecurrentBackbone) and isinstance(head, SoftmaxHead)):
        kinds = f"{run.config.backbone.kind} and {run.config.head.kind}"
        raise UserError(f"{run.folder}: onnx expects the backbone recurrent and the head softmax, got {kinds}")
    values = sum(len(variable.values) for variable in head.hashed.variables) if head.hashed is not None else 0
    if (count := values * run.model.vocabulary_size) > MAX_BIASES:
        problem = f"onnx stores at most {MAX_BIASES:,} biases of pairs of a value and a token, got {count:,}"
        raise UserError(f"{run.folder}: {problem}; train without the output bias hash")
    import_extra("onnxscript", "the format onnx", "onnx")


def write_graphs(run: Run, folder: Path) -> None:
    """Write the graphs, the tokenizer and the context schema of a recurrent run, and a README with an example."""
    has_users = run.config.data.user and run.model.encoder is not None and run.model.prefix is None
    user = run.schema.variable(run.config.data.user) if has_users else None
    with torch.no_grad():
        model, contexts = traceable_model(run.model), example_contexts(run, user)
        conditions = write_graph(Graph(model, partial(fold, user=user)), contexts, folder / "fold.onnx")
        rows = torch.tensor([0, 1, 0])  # of the contexts of three texts
        states = {name: part[rows] for name, part in conditions.items() if name.startswith(STATES)}
        write_graph(Graph(model, step), conditions | states | {"tokens": rows, "context": rows}, folder / "step.onnx")
    facts = {
        "tokenizer": asdict(run.config.tokenizer),
        "pattern": WORD.pattern if run.config.tokenizer.kind == "word" else None,
        **run.tokenizer.specials._asdict(),
        "user": None if user is None else user.name,
        "names": [] if run.model.names is None else [variable.source_column for variable in run.model.names.variables],
        "max_prompt_tokens": run.config.data.max_prompt_tokens,
        "tokens": [*run.tokenizer.tokens],
    }
    files.write_versioned(folder / "model.json", facts, FORMAT)
    files.write_json(folder / "schema.json", run.schema.to_dict())
    if run.tokenizer.is_subword:
        run.tokenizer.save(folder)
    files.write(folder / "README.md", (resources.files("factorcell") / "assets" / "onnx.md").read_text("utf-8"))


def example_contexts(run: Run, user: Variable | None) -> Tensors:
    """Return the inputs of the graph fold for two contexts in which all values are missing."""
    context = run.read(["", ""], [{}, {}], unknown="expected").context(np.arange(2))
    learned = {} if user is None else {"user_vector": torch.full((2, run.config.model.variable_size), torch.nan)}
    inputs = {"categories": context.categories, "numbers": context.numbers} | learned
    inputs |= {f"vector_{number}": vectors for number, vectors in enumerate(context.vectors)}
    return inputs | {f"words_{number}": torch.full((2, 3), MISSING) for number in range(len(context.words))}


def write_graph(module: nn.Module, inputs: Tensors, path: Path) -> Tensors:
    """Write what a module computes as a graph; return its outputs for `inputs`."""
    outputs: Tensors = module(inputs)
    axes = {name: {0: "texts" if name.startswith((*STATES, "tokens", "context")) else "contexts"} for name in inputs}
    axes |= {name: axes[name] | {1: name} for name in inputs if name.startswith("words_")}
    options: dict[str, Any] = {"input_names": [*inputs], "output_names": [*outputs], "dynamic_shapes": {"inputs": axes}}
    distinct = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in inputs.items()}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the implementation of the exporter
        program: Any = torch.onnx.export(module, kwargs={"inputs": distinct}, dynamo=True, verbose=False, **options)
    program.save(path)
    return outputs
