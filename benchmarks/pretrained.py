"""Measure the cost of adapters of a Transformer, and the training speed of a new one, side by side.

    python benchmarks/pretrained.py [--threads 2] [--processes 3]

Each row has the median of the processes. A process measures the variants in turn, several times, and takes the shortest
time of each. The variants are:

- a training step with factor adapters of rank 8 on all linear maps, against the same frozen base without adapters
  (forward and backward to the input, which a step with adapters needs at least);
- reading texts with weights into which the context is folded, and in one context that is not folded, against the base
  itself;
- a training step of a new model with the sampled loss of factorcell, against the same architecture of `transformers`
  with `cross_entropy` over all tokens.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch.nn import functional as F

import processes
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.nn.language_model import LanguageModel
from factorcell.nn.output import Proposal

TEXTS, STEPS, VOCABULARY, CITIES = 16, 64, 50_000, 8
SIZES = {"hidden_size": 576, "num_hidden_layers": 6, "num_attention_heads": 9, "num_key_value_heads": 3}
REPETITIONS = 5


def adapted_model(folder: Path, adapt: tuple[str, ...]) -> tuple[LanguageModel, object]:
    """Return a model with a frozen base in `folder`, and a batch of texts in several contexts."""
    rows = [{"text": "ab" * (STEPS // 2 - 1), "city": f"city {index % CITIES}"} for index in range(TEXTS)]
    config = Config.of(
        context=("city",), backbone="huggingface", tokenizer="char", base=str(folder), adapt=adapt, output_bias=(),
        rank=8, shared_rank=0, context_size=8, min_count=1, min_context_count=1,
    )  # fmt: skip
    corpus = prepare(rows, config)
    torch.manual_seed(0)
    model = LanguageModel(config, len(corpus.tokenizer), corpus.schema)
    return model, corpus.batch(torch.arange(TEXTS).numpy())


def measure_pretrained() -> dict[str, float]:
    """Return the seconds of steps and of reading with a frozen base."""
    import tempfile

    config = transformers.LlamaConfig(
        **SIZES, intermediate_size=1536, vocab_size=1000, max_position_embeddings=256, tie_word_embeddings=True
    )
    folder = Path(tempfile.mkdtemp())
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    base = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="sdpa").requires_grad_(False)
    model, batch = adapted_model(folder, ("factor",))
    inputs = torch.randn(TEXTS, STEPS, SIZES["hidden_size"]) * 0.1

    def base_step() -> None:
        values = inputs.clone().requires_grad_()
        base.model(inputs_embeds=values, use_cache=False).last_hidden_state.sum().backward()

    def adapted_step() -> None:
        conditioning = model.condition(batch.context)
        vectors, _ = model.backbone(inputs, conditioning.conditions, conditioning.start, batch.lengths)
        vectors.sum().backward()

    with torch.no_grad():
        single = model.condition(batch.context.select(torch.zeros(1, dtype=torch.long))).conditions
        folded = replace(single, shifts=model.backbone.maps.fold(single.shifts))
        start = model.backbone.start(single, TEXTS)

    def base_reading() -> None:
        with torch.no_grad():
            base.model(inputs_embeds=inputs, use_cache=True)

    def folded_reading() -> None:
        with torch.no_grad():
            model.backbone(inputs, folded, start)

    def reading_in_one_context() -> None:
        with torch.no_grad():
            model.backbone(inputs, single, start)

    def mixed_reading() -> None:
        with torch.no_grad():
            conditioning = model.condition(batch.context)
            model.backbone(inputs, conditioning.conditions, conditioning.start)

    return processes.shortest(
        {
            "step of the frozen base": base_step,
            "step with adapters": adapted_step,
            "reading by the base": base_reading,
            "reading, folded": folded_reading,
            "reading, one context": reading_in_one_context,
            "reading, mixed contexts": mixed_reading,
        },
        REPETITIONS,
    )


def measure_new() -> dict[str, float]:
    """Return the seconds of a training step of a new model, ours and that of plain PyTorch."""
    config = Config.of(architecture="llama", layers=4, hidden_size=256, tokenizer="word", adapt=(), output_bias=())
    torch.manual_seed(0)
    model = LanguageModel(config, VOCABULARY, prepare([{"text": "a"}], Config.of(min_count=1)).schema)
    adam = torch.optim.AdamW(
        [parameter for name, parameter in model.named_parameters() if name != "embedding"], fused=True
    )
    plain = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=688,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )
    plain_adam = torch.optim.AdamW(plain.parameters(), fused=True)
    tokens = torch.randint(3, VOCABULARY, (TEXTS, STEPS + 1))
    proposal = Proposal(1.0 / torch.arange(1, VOCABULARY + 1), 1000)
    batch = prepare([{"text": "a"}], Config.of(min_count=1)).batch(torch.zeros(1).long().numpy())
    from dataclasses import replace

    batch = replace(
        batch,
        tokens=tokens,
        lengths=torch.full((TEXTS,), STEPS),
        context=batch.context.select(torch.zeros(TEXTS, dtype=torch.long)),
    )
    from factorcell.training.row_adam import RowAdam

    row_adams = [RowAdam(group, [1e-3] * 1000, 0.0) for group in model.head.row_tables()]
    counter = [0]

    def our_step() -> None:
        samples = proposal.draw()
        rows = model.head.sampled_rows(batch.tokens, samples, batch.context.categories)
        values = []
        for row_adam, selected in zip(row_adams, rows.rows, strict=True):
            row_adam.catch_up(counter[0], selected)
            values.append(row_adam.read(selected))
        loss = model.sampled_nats(batch, samples, rows, values).mean()
        model.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        counter[0] += 1
        for row_adam, selected, group in zip(row_adams, rows.rows, values, strict=True):
            row_adam.step(counter[0], selected, [value.grad for value in group])

    def plain_step() -> None:
        logits = plain(input_ids=tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        plain.zero_grad(set_to_none=True)
        loss.backward()
        plain_adam.step()

    return processes.shortest({"step of a new model": our_step, "step of plain PyTorch": plain_step}, REPETITIONS)


def main() -> None:
    """Measure in several processes and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = processes.measure_in_processes(parser, lambda _: measure_pretrained() | measure_new())
    processes.show(
        rows,
        {
            "adapters, of a training step": ("step with adapters", "step of the frozen base"),
            "folded reading": ("reading, folded", "reading by the base"),
            "one context, reading": ("reading, one context", "reading by the base"),
            "mixed contexts, reading": ("reading, mixed contexts", "reading by the base"),
            "new model: plain / ours": ("step of plain PyTorch", "step of a new model"),
        },
    )


if __name__ == "__main__":
    main()
