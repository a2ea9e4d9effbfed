"""Compare context adapters with LoRA adapters of the library PEFT: speed and size, side by side.

    python benchmarks/peft_comparison.py [--base MODEL] [--shared-rank 0] [--threads 2] [--processes 3]

The base is a new Llama of the size of SmolLM2-135M with 6 instead of 30 layers, or the pretrained model `--base`. Its
weights have the number type `--precision`; the values of all adapters are float32 numbers, as both libraries create
them for any base. All adapters have rank 8 and change all linear maps of the layers. Each row has the median of the
processes. A process measures the variants in turn, several times, and takes the shortest time of each:

- a training step (forward, backward, AdamW) with context adapters, each text in another context, against a step with
  one shared LoRA;
- reading 32 texts in 32 different contexts, and generating tokens for them, against the same in one batch of PEFT with
  32 LoRA adapters, and against the base alone;
- reading with the weights of one context, folded, against the base.

PEFT has an adapter for each context; context adapters have one vector for each context and one set of tensors.
"""

import argparse
import copy
import warnings
from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers

import processes
from factorcell.hf import ContextConfig, get_context_model
from factorcell.nn.backbones.adapted_modules import Adaptation, applied, with_constant

TEXTS, STEPS, CONTEXTS, RANK, NEW_TOKENS, REPETITIONS = 32, 64, 32, 8, 16, 4
SIZES = {"hidden_size": 576, "num_hidden_layers": 6, "num_attention_heads": 9, "num_key_value_heads": 3}


def new_base(name: str, dtype: torch.dtype) -> Any:
    """Return the base with weights of the number type `dtype`."""
    if name:
        return transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype, local_files_only=True)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES, intermediate_size=1536, vocab_size=8000, max_position_embeddings=256, tie_word_embeddings=True
    )
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def training_step(model: Any, tokens: torch.Tensor, **arguments: Any) -> Callable[[], object]:
    """Return a training step of the trained parameters of `model`."""
    adam = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], fused=True)

    def step() -> None:
        model(input_ids=tokens, labels=tokens, use_cache=False, **arguments).loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)

    return step


def reading(model: Any, tokens: torch.Tensor, **arguments: Any) -> Callable[[], object]:
    """Return a pass of `model` over `tokens` without gradients."""

    def read() -> None:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False, **arguments)

    return read


def generation(model: Any, tokens: torch.Tensor, **arguments: Any) -> Callable[[], object]:
    """Return the generation of `NEW_TOKENS` tokens after the first token of each text."""
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None}

    def generate() -> None:
        prompts = tokens[:, :1]
        model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **options, **arguments)

    return generate


def measure(base_name: str, dtype: torch.dtype, shared_rank: int) -> dict[str, float]:
    """Return the seconds of all variants and the bytes of a context."""
    warnings.filterwarnings("ignore")
    base = new_base(base_name, dtype)
    rows = [{"place": f"place {index % CONTEXTS}"} for index in range(4 * CONTEXTS)]
    config = ContextConfig(["place"], min_count=1, rank=RANK, shared_rank=shared_rank, alpha=RANK).fit(rows)
    model = get_context_model(copy.deepcopy(base), config)
    names = sorted({projection.path.rpartition(".")[2] for projection in model.maps.projections})
    options = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names, init_lora_weights=False)
    shared = peft.get_peft_model(copy.deepcopy(base), options)
    many = peft.get_peft_model(copy.deepcopy(base), options, adapter_name="place 0")
    for index in range(1, CONTEXTS):
        many.add_adapter(f"place {index}", options)
    tokens = torch.randint(3, base.config.vocab_size, (TEXTS, STEPS))
    contexts = model.read_contexts(rows[:TEXTS])
    with torch.no_grad():
        shifts = model.maps.fold(model.maps.condition(with_constant(model.context_vectors(rows[0]))))

    def read_folded() -> None:
        with torch.no_grad(), applied(Adaptation(model.maps, shifts)):
            model.base(input_ids=tokens, use_cache=False)

    adapter_names = [row["place"] for row in rows[:TEXTS]]
    seconds = processes.shortest(
        {
            "training, context adapters": training_step(model.train(), tokens, context=contexts),
            "training, shared LoRA": training_step(shared.train(), tokens),
        },
        REPETITIONS,
    ) | processes.shortest(
        {
            "reading, 32 contexts": reading(model.eval(), tokens, context=contexts),
            "reading, 32 LoRA adapters": reading(many.eval(), tokens, adapter_names=adapter_names),
            "reading, folded context": read_folded,
            "reading, base": reading(base.eval(), tokens),
            "generating, 32 contexts": generation(model, tokens, context=contexts),
            "generating, 32 LoRA adapters": generation(many, tokens, adapter_names=adapter_names),
            "generating, base": generation(base, tokens),
        },
        REPETITIONS,
    )
    trained = sum(parameter.numel() for parameter in shared.parameters() if parameter.requires_grad)
    assert model.encoder is not None
    vector = model.encoder.tables[0].shape[1]
    sizes = {"bytes per LoRA adapter": 4.0 * trained, "bytes per context": 4.0 * vector}
    return seconds | sizes | {"bytes of context adapters": 4.0 * model.get_nb_trainable_parameters()[0]}


def main() -> None:
    """Measure in several processes and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", help="name or folder of a pretrained model; default: a new Llama")
    parser.add_argument(
        "--precision", default="float32", choices=("float32", "bfloat16"), help="number type of the base"
    )
    parser.add_argument("--shared-rank", type=int, default=0, help="rank of the LoRA that all contexts share")

    def measure_once(arguments: argparse.Namespace) -> dict[str, float]:
        return measure(arguments.base, getattr(torch, arguments.precision), arguments.shared_rank)

    rows = processes.measure_in_processes(parser, measure_once)
    processes.show(
        rows,
        {
            "training, tokens per second": ("training, shared LoRA", "training, context adapters"),
            "mixed batch, generating": ("generating, 32 LoRA adapters", "generating, 32 contexts"),
            "mixed batch, reading": ("reading, 32 LoRA adapters", "reading, 32 contexts"),
            "folded reading, speed": ("reading, base", "reading, folded context"),
            "reading over the base": ("reading, 32 contexts", "reading, base"),
            "generating over the base": ("generating, 32 contexts", "generating, base"),
        },
    )


if __name__ == "__main__":
    main()
