"""The cases of `gpu.py`: layers, the softmax, training steps of recurrent models and of Transformers.

All texts and weights are random, so that no data and no network are needed.

    words        e 200, d 240, rank 12; 100 texts of 40 words
    characters   e 24, d 600, rank 60; 256 texts of 60 characters
    agnews_words, commits_small   the recipes of these names in experiments
    new Llama    4 layers of 256
    SmolLM2      a frozen Llama of the sizes of SmolLM2-135M with adapters of rank 8, and random weights
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from factorcell.config import Config, RecurrentOptions, WordOptions
from factorcell.data.columns.context import Ragged
from factorcell.data.columns.schema import UNKNOWN_VALUE, ContextSchema, Variable
from factorcell.data.corpus import Batch, Corpus
from factorcell.data.tokenizers.tokenizer import END, SPECIAL_TOKENS, START, WordTokenizer
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.loop_graphs import LoopGraphs
from factorcell.nn.backbones.recurrent import Cell
from factorcell.nn.kernels import gpu_recurrence, library, softmax
from factorcell.nn.language_model import with_identified_base
from factorcell.runs.run import Run
from factorcell.training.trainer import Trainer

CONTEXT, CONTEXTS, SOFTMAX_WIDTH = 20, 1000, 200
BATCHES = 12  # batches of a training, which differ in their numbers of texts and of steps
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# How the recurrence is computed on a GPU: the default, or a way that is forced.
DEFAULT, LOOP, GRAPHS = "factorcell", "plain loop", "CUDA graphs"
SEPARATE = "CUDA graphs, separate kernels"
LAYER_WAYS = (DEFAULT, LOOP, GRAPHS, SEPARATE)
WORDS_LAYER = {"batch": 100, "steps": 40, "embedding": 200, "hidden": 240, "rank": 12}
CHARACTERS_LAYER = {"batch": 256, "steps": 60, "embedding": 24, "hidden": 600, "rank": 60}
SMOLLM2 = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49_152, "max_position_embeddings": 2048,
}  # fmt: skip

Once = Callable[[], int]  # computes once, and returns the number of tokens
Sizes = dict[str, int]


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case.

    Attributes:
        what: The name of the way.
        make: Prepares the work, and returns the function to measure.
        period: The number of calls that differ from each other, such as the number of batches.
    """

    what: str
    make: Callable[[], Once]
    period: int = 1


@dataclass(frozen=True)
class Case:
    """Contenders that do the same work in the same precision."""

    part: str
    name: str
    precision: str
    contenders: list[Contender]


@contextmanager
def computing(way: str, device: str = DEVICE) -> Iterator[None]:
    """Compute recurrences in one way."""
    setting, supports = os.environ.get("FACTORCELL_KERNEL"), gpu_recurrence.supports
    try:
        if way == LOOP:
            os.environ["FACTORCELL_KERNEL"] = "off"
        if way in (GRAPHS, SEPARATE) and device == "cuda":
            gpu_recurrence.supports = lambda input_gates, matrix: False
        yield
    finally:
        gpu_recurrence.supports = supports
        os.environ.pop("FACTORCELL_KERNEL", None)
        if setting is not None:
            os.environ["FACTORCELL_KERNEL"] = setting


def precise(precision: str, device: str = DEVICE) -> Any:
    """Return a context manager in which products are computed in `precision`."""
    return library.precision(precision, torch.device(device))


def layer(
    way: str, sizes: Sizes, precision: str, adapt: tuple[str, ...] = ("concat", "factor"), **options: Any
) -> Once:
    """Return the forward and backward pass of a layer."""
    batch, steps, embedding, hidden, rank = sizes.values()
    backbone_sizes = BackboneSizes(embedding, CONTEXT, adapt, rank)
    cell = Cell(RecurrentOptions(hidden_size=hidden, **options), backbone_sizes).to(DEVICE).train()
    if way == SEPARATE:
        cell.graphs = LoopGraphs(cell.recurrent_step)
    inputs = torch.randn(batch, steps, embedding, device=DEVICE, requires_grad=True)
    vector = torch.randn(batch, CONTEXT, device=DEVICE, requires_grad=True)
    gradient = torch.randn(batch, steps, hidden, device=DEVICE)

    def once() -> int:
        cell.zero_grad()
        with computing(way):
            with precise(precision):
                outputs, _ = cell(inputs, cell.linear.condition(vector))
            outputs.backward(gradient.to(outputs.dtype))
        return batch * steps

    return once


def library_layer(kind: type[nn.LSTM] | type[nn.GRU], sizes: Sizes, precision: str) -> Once:
    """Return the forward and backward pass of a layer of PyTorch (cuDNN on a GPU), which has no adapters."""
    batch, steps, embedding, hidden, _ = sizes.values()
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    model = kind(embedding, hidden, batch_first=True).to(DEVICE, dtype)
    model.flatten_parameters()  # after the conversion, the weights are no longer one block of memory
    inputs = torch.randn(batch, steps, embedding, device=DEVICE, dtype=dtype, requires_grad=True)
    gradient = torch.randn(batch, steps, hidden, device=DEVICE, dtype=dtype)

    def once() -> int:
        model.zero_grad()
        model(inputs)[0].backward(gradient)
        return batch * steps

    return once


def layer_cases(scale: float, precision: str, ways: tuple[str, ...] = LAYER_WAYS) -> Iterator[Case]:
    """Yield the layers; `scale` multiplies the numbers of texts and of hidden units."""
    words, characters = (
        {**sizes, "batch": max(2, int(sizes["batch"] * scale)), "hidden": max(8, int(sizes["hidden"] * scale))}
        for sizes in (WORDS_LAYER, CHARACTERS_LAYER)
    )
    kinds: list[tuple[str, Sizes, dict[str, Any], type[nn.LSTM] | type[nn.GRU]]] = [
        ("words", words, {}, nn.LSTM),
        ("characters", characters, {}, nn.LSTM),
        ("characters, layer normalization", characters, {"layer_norm": True}, nn.LSTM),
        ("words, GRU", words, {"cell": "gru"}, nn.GRU),
        ("words, LSTM", words, {"cell": "lstm"}, nn.LSTM),
    ]
    for name, sizes, options, kind in kinds:
        # Layers with options run in CUDA graphs by default, because the Triton kernel of all steps lacks them.
        measured = [way for way in ways if not options or way != DEFAULT]
        if "cell" in options:  # the Triton kernel of a step lacks them too
            measured = [way for way in measured if way != SEPARATE]
        makers = {way: partial(layer, way, sizes, precision, **options) for way in measured}
        makers["factorcell, no adapters"] = partial(layer, DEFAULT, sizes, precision, ("concat",), **options)
        makers[f"nn.{kind.__name__}, no adapters"] = partial(library_layer, kind, sizes, precision)
        yield Case("layers", name, precision, [Contender(what, make) for what, make in makers.items()])


def large_layer_cases(scale: float, precision: str) -> Iterator[Case]:
    """Yield the layers without options with 2,048 texts."""
    for name, sizes in (("words", WORDS_LAYER), ("characters", CHARACTERS_LAYER)):
        large = {**sizes, "batch": int(2048 * scale)}
        makers = {way: partial(layer, way, large, precision) for way in (DEFAULT, GRAPHS)}
        makers["nn.LSTM, no adapters"] = partial(library_layer, nn.LSTM, large, precision)
        yield Case("large layers", name, precision, [Contender(what, make) for what, make in makers.items()])


def loss_work(is_chunked: bool, count: int, vocabulary: int, precision: str) -> Once:
    """Return the exact loss of `count` targets with gradients, ours or that of PyTorch."""
    values = (torch.randn(count, SOFTMAX_WIDTH, device=DEVICE) * 0.3).requires_grad_()
    table = (torch.randn(vocabulary, SOFTMAX_WIDTH, device=DEVICE) * 0.3).requires_grad_()
    bias = torch.zeros(vocabulary, device=DEVICE, requires_grad=True)
    targets = torch.randint(vocabulary, (count,), device=DEVICE)

    def once() -> int:
        values.grad = table.grad = bias.grad = None
        with precise(precision):
            if is_chunked:
                nats = softmax.nats(values, table, bias, targets)
            else:
                nats = F.cross_entropy(F.linear(values, table, bias), targets, reduction="none")
        nats.sum().backward()  # type: ignore[no-untyped-call]
        return count

    return once


def softmax_cases(scale: float, precision: str) -> Iterator[Case]:
    """Yield the exact loss with gradients over 50,000 words."""
    vocabulary = max(100, int(50_000 * scale))
    for count in (max(10, int(4000 * scale)), max(20, int(24_000 * scale))):
        contenders = [
            Contender("factorcell", partial(loss_work, True, count, vocabulary, precision)),
            Contender("F.cross_entropy", partial(loss_work, False, count, vocabulary, precision)),
        ]
        yield Case("softmax", f"{count:,} targets, {vocabulary:,} words", precision, contenders)


def random_texts(count: int, longest: int, vocabulary: int, shortest: int = 10) -> Corpus:
    """Return texts of different lengths with Zipf frequencies, in random contexts."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(min(shortest, longest), longest + 1, count)
    shares = 1 / np.arange(1, vocabulary - 2) ** 1.05
    offsets = np.concatenate([[0], np.cumsum(lengths + 2)])
    tokens = generator.choice(np.arange(3, vocabulary), int(offsets[-1]), p=shares / shares.sum())
    tokens[offsets[:-1]], tokens[offsets[1:] - 1] = START, END
    categories = generator.integers(1, CONTEXTS + 1, (count, 1)).astype(np.int32)
    names = (UNKNOWN_VALUE, *(f"c{index}" for index in range(CONTEXTS)))
    schema = ContextSchema((Variable("context", "category", values=names, counts=(1,) * len(names)),))
    words = (*SPECIAL_TOKENS, *(f"w{index}" for index in range(3, vocabulary)))
    tokenizer = WordTokenizer(WordOptions(), words)
    unknown = Ragged(np.zeros(0, np.int32), np.zeros(len(offsets), np.int64))
    return Corpus(tokens, offsets, categories, np.zeros((count, 0), np.float32), unknown, (), tokenizer, schema)


RECIPES: dict[str, tuple[dict[str, Any], int, int]] = {  # options, longest text, vocabulary
    "agnews_words": (
        {
            **{"embedding_size": 150, "hidden_size": 110, "rank": 12, "context_size": 8, "variable_size": 8},
            **{"dropout_recurrent": 0.1, "dropout_input": 0.1, "dropout_output": 0.2, "samples": 1000},
        },
        58,
        50_000,
    ),
    "commits_small": (
        {
            **{"embedding_size": 24, "hidden_size": 300, "rank": 50, "context_size": 20, "variable_size": 20},
            **{"layer_norm": True, "dropout_context": 0.2, "samples": 0, "output_bias": ()},
        },
        100,
        120,
    ),
    "new Llama": (
        {"architecture": "llama", "layers": 4, "hidden_size": 256, "samples": 0, "output_bias": (), "rank": 8},
        58,
        50_000,
    ),
}


def training(way: str, options: dict[str, Any], corpus: Corpus, device: str) -> Once:
    """Return a training step; calls repeat the first `BATCHES` batches."""
    config = with_identified_base(Config.of(**options, epochs=1e4, device=device))
    trainer = Trainer(Run(Path(), config, corpus.tokenizer, corpus.schema), corpus, corpus.select(np.arange(2)))
    repeated = itertools.cycle(list(itertools.islice(trainer.batches(), BATCHES)))

    def once() -> int:
        batch = next(repeated)
        with computing(way, device):
            trainer.step(batch)
        return int(batch.lengths.sum())

    return once


def training_cases(scale: float, precision: str) -> Iterator[Case]:
    """Yield training steps of the recipes with small and large batches."""
    for tokens in (1500, 24_000):
        for name, (options, longest, vocabulary) in RECIPES.items():
            batch_tokens = max(100, int(tokens * scale))
            text_count = BATCHES * batch_tokens // (longest // 2) + 50
            corpus = random_texts(text_count, longest, max(100, int(vocabulary * scale)))
            options = {**options, "batch_tokens": batch_tokens, "precision": precision}
            has_kernel, is_transformer = not options.get("layer_norm"), "architecture" in options
            makers = {DEFAULT: partial(training, DEFAULT, options, corpus, DEVICE)}
            if is_transformer:
                makers["transformers, no adapters"] = partial(plain_llama, corpus, options)
            elif has_kernel:
                makers[GRAPHS] = partial(training, GRAPHS, options, corpus, DEVICE)
            if tokens == 1500 and not is_transformer:
                makers[LOOP] = partial(training, LOOP, options, corpus, DEVICE)
                # In float32 unless the processor has instructions for bfloat16.
                makers["processor"] = partial(training, DEFAULT, options, corpus, "cpu")
            contenders = [Contender(what, make, BATCHES) for what, make in makers.items()]
            yield Case("training", f"{name}, batches of {batch_tokens:,} tokens", precision, contenders)


def plain_llama(corpus: Corpus, options: dict[str, Any]) -> Once:
    """Return a training step of a new Llama of `transformers` with `cross_entropy` and Adam."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=len(corpus.tokenizer), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=688, tie_word_embeddings=True, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), fused=True)
    rows = corpus.batches(options["batch_tokens"], seed=0)[:BATCHES]
    repeated = itertools.cycle([corpus.batch(row) for row in rows])

    def once() -> int:
        batch = next(repeated).to(torch.device(DEVICE))
        mask = batch.mask()
        with precise(options["precision"]):
            logits = model(input_ids=batch.tokens[:, :-1], attention_mask=mask.long()).logits
            losses = F.cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten(), reduction="none")
        loss = (losses * mask.flatten()).sum() / mask.sum()
        model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        adam.step()
        return int(batch.lengths.sum())

    return once


def pretrained_cases(scale: float, precision: str) -> Iterator[Case]:
    """Yield training steps of a frozen Llama with adapters, and passes through the base alone."""
    import transformers

    shape = SMOLLM2 if scale == 1 else {**SMOLLM2, "num_hidden_layers": 2, "vocab_size": 300}
    folder = tempfile.TemporaryDirectory()  # deleted when the last case is forgotten
    llama = transformers.LlamaConfig(**shape, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)  # type: ignore[arg-type]
    base = transformers.LlamaForCausalLM(llama).to(DEVICE, getattr(torch, precision)).requires_grad_(False)
    base.save_pretrained(folder.name)
    for tokens in (1500, 24_000):
        batch_tokens = max(200, int(tokens * scale))
        corpus = random_texts(BATCHES * batch_tokens // 60 + 50, 64, shape["vocab_size"], shortest=60)
        options = {
            **{
                "base": folder.name,
                "adapt": ("factor",),
                "rank": 8,
                "shared_rank": 0,
                "output_bias": (),
            },
            **{"context_size": 8, "variable_size": 8, "samples": 0, "batch_tokens": batch_tokens},
            "precision": precision,
        }
        batch = corpus.batch(corpus.batches(batch_tokens)[0]).to(torch.device(DEVICE))

        contenders = [
            Contender("factorcell", partial(training, DEFAULT, options, corpus, DEVICE), BATCHES),
            Contender("base, gradients of its inputs", partial(base_pass, base, batch, True)),
            Contender("base, no gradients", partial(base_pass, base, batch, False)),
        ]
        yield Case("pretrained", f"SmolLM2, batches of {batch_tokens:,} tokens", precision, contenders)


def base_pass(base: Any, batch: Batch, with_gradients: bool) -> Once:
    """Return a pass of a frozen model with its loss, and backwards to its inputs if `with_gradients`."""
    inputs = F.embedding(batch.tokens[:, :-1], base.get_input_embeddings().weight)

    def once() -> int:
        values: Tensor = inputs.clone().requires_grad_(with_gradients)
        with nullcontext() if with_gradients else torch.no_grad():
            logits = base(inputs_embeds=values).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.tokens[:, 1:].flatten())
        if with_gradients:
            loss.backward()  # type: ignore[no-untyped-call]
        return int(batch.lengths.sum())

    return once


PARTS: dict[str, Callable[[float, str], Iterator[Case]]] = {
    "layers": layer_cases,
    "training": training_cases,
    "pretrained": pretrained_cases,
    "softmax": softmax_cases,
    "large layers": large_layer_cases,
}
