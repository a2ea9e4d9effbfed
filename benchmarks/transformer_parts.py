"""Where the time of a Transformer with context adapters goes: a training step, and a generated token.

    python benchmarks/transformer_parts.py [--threads 2] [--layers 30]

The base has the shape of SmolLM2-135M and random weights. A training step reads 16 texts of 40 tokens in 8 contexts; a
token is generated for one text, with the context folded into the weights. PyTorch's profiler records the operations
without those that they call; operations are assigned to parts by their names and by the shapes of their arrays.
"""

import argparse
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.nn.language_model import LanguageModel

TEXTS, STEPS, CITIES, RANK, CONTEXT = 16, 40, 8, 4, 8
VOCABULARY, SIZE = 49_152, 576
REPETITIONS = 3  # profiled calls, after one that is not
SOFTMAX, OTHERS = "softmax over the vocabulary", "norms, activations, copies"
PARTS = ("linear maps", "adapters", "attention", SOFTMAX, "optimizer", OTHERS)
PRODUCTS = ("aten::mm", "aten::addmm")


def make_model(layers: int, folder: Path) -> tuple[LanguageModel, object]:
    """Return a model with a frozen random base, and a batch."""
    config = transformers.LlamaConfig(
        hidden_size=SIZE, num_hidden_layers=layers, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, vocab_size=VOCABULARY, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    rows = [{"text": "ab" * (STEPS // 2 - 1), "city": f"city {index % CITIES}"} for index in range(TEXTS)]
    options = Config.of(
        context=("city",), tokenizer="char", base=str(folder), adapt=("factor",), output_bias=(), rank=RANK,
        shared_rank=0, context_size=CONTEXT, min_count=1, min_context_count=1, base_precision="float32",
        max_tokens=STEPS,
    )  # fmt: skip
    corpus = prepare(rows, options)
    model = LanguageModel(options, len(corpus.tokenizer), corpus.schema)
    return model, corpus.batch(torch.arange(TEXTS).numpy())


def training_step(model: LanguageModel, batch: object) -> Callable[[], None]:
    """Return a step: forward and backward pass with the exact loss, and AdamW."""
    inputs, targets = torch.randn(TEXTS, STEPS, SIZE) * 0.1, torch.randint(VOCABULARY, (TEXTS * STEPS,))
    table = torch.randn(VOCABULARY, SIZE) * 0.02
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def step() -> None:
        conditioning = model.condition(batch.context)
        vectors, _ = model.backbone(inputs, conditioning.conditions, conditioning.start, batch.lengths)
        loss = F.cross_entropy(vectors.flatten(0, 1) @ table.T, targets)
        adam.zero_grad()
        loss.backward()
        adam.step()

    return step


def generated_token(model: LanguageModel, batch: object) -> Callable[[], None]:
    """Return a function that reads one more token of a text of `STEPS` tokens, and computes all probabilities."""
    table = torch.randn(VOCABULARY, SIZE) * 0.02
    with torch.no_grad():
        context = batch.context.select(torch.zeros(1, dtype=torch.long))
        conditions = model.condition(context).conditions
        start = model.backbone.start(conditions, 1)
        _, state = model.backbone(torch.randn(1, STEPS, SIZE) * 0.1, conditions, start)
    inputs = torch.randn(1, SIZE) * 0.1

    def token() -> None:
        with torch.no_grad():
            vector, _ = model.backbone.step(inputs, conditions, state)
            torch.log_softmax(vector @ table.T, dim=1)

    return token


def part_of(name: str, shapes: str) -> str:
    """Return the part of `PARTS` that an operation belongs to."""
    if "attention" in name:
        return "attention"
    if "adam" in name.lower():
        return "optimizer"
    if str(VOCABULARY) in shapes or "nll" in name or "softmax" in name.lower():
        return SOFTMAX
    if name in ("aten::bmm", "aten::baddbmm") or (name in PRODUCTS and re.search(rf"\b{CONTEXT + 1}\b", shapes)):
        return "adapters"
    return "linear maps" if name in PRODUCTS else OTHERS


def measure(once: Callable[[], None]) -> dict[str, float]:
    """Return the milliseconds per call of each part."""
    once()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(REPETITIONS):
            once()
    milliseconds = dict.fromkeys(PARTS, 0.0)
    for event in recorded.key_averages(group_by_input_shape=True):
        part = part_of(event.key, str(event.input_shapes))
        milliseconds[part] += event.self_cpu_time_total / 1000 / REPETITIONS
    return milliseconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model, batch = make_model(arguments.layers, Path(folder))
    columns = [measure(make(model, batch)) for make in (training_step, generated_token)]
    totals = [sum(column.values()) for column in columns]
    print("| part | training step, ms | share | generated token, ms | share |")
    print("|---|---:|---:|---:|---:|")
    for part in PARTS:
        shares = zip(columns, totals, strict=True)
        figures = [f"{column[part]:,.1f} | {column[part] / total:.0%}" for column, total in shares]
        print(f"| {part} | {' | '.join(figures)} |")
    print(f"| all | {totals[0]:,.1f} | | {totals[1]:,.1f} | |")


if __name__ == "__main__":
    main()
