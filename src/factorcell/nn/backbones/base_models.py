"""Causal language models of the Hugging Face library `transformers`, as bases of adapted models.

A base is pretrained (`factorcell.io.pretrained`), or a new model of a named architecture with random weights.
"""

import copy
import functools
from typing import Any

import torch
from torch import nn

from factorcell.errors import UserError, nearest_hint
from factorcell.io import pretrained
from factorcell.io.extras import missing_package_error
from factorcell.io.pretrained import (
    Source,
    find_source,
    first_line,
    quiet,
    read_config,
    transformers,
    wrong_digest_error,
)
from factorcell.options.option_fields import HuggingFaceOptions

HEAD_SIZE = 64  # numbers per attention head of a new model
FEED_FORWARD_FACTOR = 8 / 3  # size of the layer inside the feed-forward network, divided by the size of the vectors


def new_base(options: HuggingFaceOptions) -> Any:
    """Return a causal language model of `transformers` with the weights of its base, or with random weights.

    If PyTorch's default device is "meta", the model has no weights.

    Raises:
        UserError: The base is missing, is not a causal language model, or has other weights than training recorded.
    """
    if not options.is_pretrained:
        try:
            config = new_config(options)
            pretrained.check_supported(config, str(options))
            return _from_config(config)
        except UserError:
            raise
        except Exception as error:  # architectures refuse sizes with errors of many kinds
            raise UserError(f"{options}: cannot be created ({first_line(error)})") from None
    source = find_source(options.base)
    if torch.get_default_device().type == "meta":
        config = read_config(source)
        try:
            return _from_config(config)
        except Exception as error:  # architectures refuse configs with errors of many kinds
            raise UserError(f"{source}: cannot be loaded ({first_line(error)})") from None
    precision = torch.bfloat16 if options.is_frozen_in_bfloat16 else torch.float32
    model = _load(source, source.version(), options.base_digest, precision)
    if options.train_base:
        return copy.deepcopy(model)
    # All models of this process share the memory of frozen weights.
    return copy.deepcopy(
        model, {id(parameter): nn.Parameter(parameter.data, requires_grad=False) for parameter in model.parameters()}
    )


@functools.lru_cache(maxsize=1)  # a training opens its base several times: to measure speed, and to train
def _load(source: Source, version: tuple[int, ...], digest: str, precision: torch.dtype) -> Any:
    """Return the pretrained model with these files, whose digest must be `digest` if it is not empty."""
    library = transformers()
    if digest and (actual_digest := source.digest()) != digest:
        raise wrong_digest_error(source, digest, actual_digest)
    try:
        with quiet(library):
            return library.AutoModelForCausalLM.from_pretrained(
                source.folder,
                gguf_file=source.gguf_file,
                config=read_config(source),
                dtype=precision,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True if source.gguf_file is None else None,
                attn_implementation="sdpa",
            )
    except ImportError as error:
        raise missing_package_error(str(source), error.name, "transformers") from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"{source}: cannot be loaded ({first_line(error)})") from None


def new_config(options: HuggingFaceOptions) -> Any:
    """Return the `transformers` config of a new model of the architecture that `options` name.

    Raises:
        UserError: There is no such architecture, or the sizes do not fit together.
    """
    library = transformers()
    if options.architecture not in (known := pretrained.architectures()):
        raise UserError(
            f"unknown {options}{nearest_hint(options.architecture, known)}; expected a causal language model of "
            "transformers, such as llama, gpt2 or qwen2, or, for a pretrained model, the option base"
        )
    if options.hidden_size % 2:
        raise UserError(f"hidden_size: expected an even number for a new Transformer, got {options.hidden_size}")
    most_heads = max(1, options.hidden_size // HEAD_SIZE)
    heads = next(count for count in range(most_heads, 0, -1) if options.hidden_size % (2 * count) == 0)
    sizes = {
        "vocab_size": 1,  # the language model has its own embeddings of tokens
        "hidden_size": options.hidden_size,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": options.hidden_size // heads,
        "intermediate_size": 16 * round(options.hidden_size * FEED_FORWARD_FACTOR / 16) or 16,
    }
    config_class = library.AutoConfig.for_model(options.architecture).__class__
    config = config_class()
    names = {name: config_class.attribute_map.get(name, name) for name in sizes}
    known_sizes = {names[name]: value for name, value in sizes.items() if hasattr(config, names[name])}
    return config_class(
        **known_sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )


def max_positions(config: Any) -> int | None:
    """Return the largest number of tokens that a model with this config can read; None: any number.

    With LongRoPE, one text above the original length changes the rotations of all texts of its batch.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    name = "original_max_position_embeddings" if rope.get("rope_type") == "longrope" else "max_position_embeddings"
    return int(rope.get(name) or getattr(config, name, None) or 0) or None


def input_scale(embeddings: Any) -> float:
    """Return the factor on the embeddings of tokens, as in Gemma; 1.0 in other models."""
    return float(getattr(embeddings, "scalar_embed_scale", getattr(embeddings, "embed_scale", 1.0)))


def check_computation(model: Any, where: str) -> None:
    """Check that the language model `where` computes vectors and logits as models of factorcell do.

    Raises:
        UserError: A vector depends on later tokens, the model has no cache of all tokens, or its logits are not those
            of an output layer after the last vectors.
    """
    base, was_training = model.base_model, model.training
    inputs = torch.ones(1, 3, base.get_input_embeddings().weight.shape[1], dtype=next(base.parameters()).dtype)
    changed = inputs.clone()
    changed[:, 2, 0] = 2.0
    cache = transformers().DynamicCache()
    try:
        with torch.no_grad():
            model.eval()
            first, second = (base(inputs_embeds=values).last_hidden_state for values in (inputs, changed))
            base(inputs_embeds=inputs, cache=cache, use_cache=True)
            logits, expected_logits = model(inputs_embeds=changed).logits, model.get_output_embeddings()(second)
    except Exception as error:  # architectures without embeddings as inputs or without a cache fail in many ways
        raise UserError(f"{where}: this architecture is not supported ({first_line(error)})") from None
    model.train(was_training)
    if not torch.equal(first[:, :2], second[:, :2]):
        raise UserError(f"{where}: expected a causal language model, got one that reads later tokens")
    if not torch.allclose(logits.float(), expected_logits.float(), rtol=0, atol=0.01 * float(logits.abs().max())):
        raise UserError(f"{where}: expected logits that the output layer computes from the last vectors")
    if any(getattr(layer, "keys", None) is None or layer.keys.shape[2] != 3 for layer in cache.layers):
        raise UserError(f"{where}: expected a model with attention to all tokens in each layer")


def _from_config(config: Any) -> Any:
    library = transformers()
    with quiet(library):
        return library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
