"""Causal language models of the Hugging Face library `transformers`, as bases of adapted models.

A base is pretrained (a model on the hub, a folder, or a GGUF file) or new (the name of an architecture). Models are
opened without network access; only `download` fetches a model of the hub, which training does at its start.
"""

import contextlib
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from factorcell.config import UserError
from factorcell.digests import sha256_of
from factorcell.option_fields import HuggingFaceOptions

INSTALL = 'pip install "factorcell[transformers]"'
HEAD_SIZE = 64  # numbers per attention head of a new model
FEED_FORWARD_FACTOR = 8 / 3  # size of the layer inside the feed-forward network, divided by the size of the vectors
# Settings of a base that change its logits after the output layer, which the softmax head does not compute.
UNSUPPORTED = {"final_logit_softcapping": (None, 0), "logit_scale": (None, 1), "logits_scaling": (None, 1)}


@dataclass(frozen=True)
class Source:
    """The files of a pretrained model.

    Attributes:
        folder: The folder with config.json and the weights, or with the GGUF file.
        gguf_file: The name of the GGUF file, or None.
    """

    folder: Path
    gguf_file: str | None = None

    def weight_files(self) -> list[Path]:
        """Return the files with the weights, sorted by name.

        Raises:
            UserError: There are none.
        """
        pattern = "*.safetensors" if self.gguf_file is None else self.gguf_file
        paths = sorted(self.folder.glob(pattern))
        if not paths:
            raise UserError(f"{self.folder}: expected weights in files {pattern}, got none")
        return paths

    def digest(self) -> str:
        """Return the SHA-256 of the weights; of several files, that of their digests in the order of their names."""
        digests = []
        for path in self.weight_files():
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return digests[0] if len(digests) == 1 else sha256_of("\n".join(digests).encode())


def transformers() -> Any:
    """Import `transformers`.

    Raises:
        UserError: It is not installed.
    """
    try:
        with _offline():
            import transformers
    except ImportError as error:
        raise UserError(f"a backbone of kind huggingface needs the package {error.name}: {INSTALL}") from None
    return transformers


def find_source(base: str) -> Source:
    """Return the files of the pretrained model `base`, which must be on this machine.

    Raises:
        UserError: The files are missing.
    """
    path = Path(base)
    if path.is_dir():
        return Source(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{path}: expected a folder with a model, or a GGUF file; got another file")
        return Source(path.parent, path.name)
    if path.suffix == ".gguf" or base.count("/") != 1:
        raise UserError(f"base {base!r}: there is no such file or folder")
    return Source(_hub_folder(base, local_files_only=True))


def identify(options: HuggingFaceOptions) -> HuggingFaceOptions:
    """Return `options` with the digest of the weights of the base; a model of the hub is downloaded if necessary.

    Raises:
        UserError: The base is missing, or it has another digest than that in `options`.
    """
    if not options.is_pretrained:
        return options
    if not Path(options.base).exists() and options.base.count("/") == 1:
        _hub_folder(options.base, local_files_only=False)
    source = find_source(options.base)
    read_config(source)  # raises the error about a model that is not supported
    return replace(options, base_digest=options.base_digest or source.digest())


def _hub_folder(name: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=local_files_only))
    except Exception as error:  # the library raises errors of many kinds if the network or the model is missing
        problem = "it is not on this machine" if local_files_only else f"it cannot be downloaded ({_first_line(error)})"
        raise UserError(f"base {name!r}: {problem}; download it with `hf download {name}`") from None


def new_base(options: HuggingFaceOptions) -> Any:
    """Return a causal language model of `transformers` with the weights of its base, or with random weights.

    If PyTorch's default device is "meta", the model has no weights.

    Raises:
        UserError: The base is missing, is not a causal language model, or has other weights than training recorded.
    """
    library = transformers()
    if not options.is_pretrained:
        return _from_config(new_config(options))
    source = find_source(options.base)
    config = read_config(source)
    if torch.get_default_device().type == "meta":
        return _from_config(config)
    if options.base_digest and (digest := source.digest()) != options.base_digest:
        expected = f"expected weights with SHA-256 {options.base_digest[:12]}, as in training, got {digest[:12]}"
        raise UserError(f"base {options.base!r}: {expected}")
    precision = torch.float32 if options.train_base else getattr(torch, options.base_precision)
    try:
        with _offline(), _quiet(library):
            return library.AutoModelForCausalLM.from_pretrained(
                source.folder,
                gguf_file=source.gguf_file,
                config=config,
                dtype=precision,
                local_files_only=True,
                use_safetensors=True if source.gguf_file is None else None,
                attn_implementation="sdpa",
            )
    except ImportError as error:
        raise UserError(f"base {options.base!r}: needs the package {error.name}: {INSTALL}") from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"base {options.base!r}: cannot be loaded ({_first_line(error)})") from None


def read_config(source: Source) -> Any:
    """Return the `transformers` config of a pretrained model.

    Raises:
        UserError: The config is missing or damaged, or the model is not a supported causal language model.
    """
    path = source.folder / (source.gguf_file or "config.json")
    if not path.is_file():
        raise UserError(f"{source.folder}: expected a model with a config.json, got none")
    return _read_config(source, path.stat().st_mtime_ns, path.stat().st_size)


@functools.lru_cache(maxsize=4)  # reading the config of a GGUF file takes seconds
def _read_config(source: Source, time: int, size: int) -> Any:
    library = transformers()
    try:
        with _offline(), _quiet(library):
            config = library.AutoConfig.from_pretrained(
                source.folder, gguf_file=source.gguf_file, local_files_only=True
            )
    except ImportError as error:
        raise UserError(f"{source.folder}: needs the package {error.name}: {INSTALL}") from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"{source.folder}: the config of the model cannot be read ({_first_line(error)})") from None
    if type(config) not in library.AutoModelForCausalLM._model_mapping:
        raise UserError(f"{source.folder}: expected a causal language model, got the architecture {config.model_type}")
    for name, neutral_values in UNSUPPORTED.items():
        if getattr(config, name, None) not in neutral_values:
            raise UserError(f"{source.folder}: models with {name} are not supported")
    return config


def new_config(options: HuggingFaceOptions) -> Any:
    """Return the `transformers` config of a new model of the architecture `options.base`.

    Raises:
        UserError: There is no such architecture, or the sizes do not fit together.
    """
    library = transformers()
    if options.base not in library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(
            f"base {options.base!r}: expected a folder, a GGUF file, the name of a model on the hub such as "
            "HuggingFaceTB/SmolLM2-135M, or an architecture such as llama, gpt2 or qwen2"
        )
    heads = options.heads or max(1, options.hidden_size // HEAD_SIZE)
    if options.hidden_size % (2 * heads):
        raise UserError(
            f"hidden_size: expected a multiple of 2 * heads ({2 * heads}) for a new Transformer, got "
            f"{options.hidden_size}"
        )
    sizes = {
        "vocab_size": 1,  # the language model has its own embeddings of tokens
        "hidden_size": options.hidden_size,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": options.hidden_size // heads,
        "intermediate_size": 16 * round(options.hidden_size * FEED_FORWARD_FACTOR / 16) or 16,
    }
    config_class = library.AutoConfig.for_model(options.base).__class__
    config = config_class()
    names = {name: config_class.attribute_map.get(name, name) for name in sizes}
    known_sizes = {names[name]: value for name, value in sizes.items() if hasattr(config, names[name])}
    return config_class(**known_sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def check_causal(base: nn.Module, name: str) -> None:
    """Raise `UserError` if vectors of the model `base` depend on later tokens, or if it has no cache of all tokens."""
    size = base.get_input_embeddings().weight.shape[1]  # type: ignore[operator, union-attr]
    inputs = torch.ones(1, 3, size, dtype=next(base.parameters()).dtype)
    changed = inputs.clone()
    changed[:, 2, 0] = 2.0
    cache = transformers().DynamicCache()
    was_training = base.training
    with torch.no_grad():
        base.eval()
        first, second = (base(inputs_embeds=values).last_hidden_state[:, :2] for values in (inputs, changed))
        base(inputs_embeds=inputs, cache=cache, use_cache=True)
    base.train(was_training)
    if not torch.equal(first, second):
        raise UserError(f"base {name!r}: expected a causal language model, got one that reads later tokens")
    if any(getattr(layer, "keys", None) is None or layer.keys.shape[2] != 3 for layer in cache.layers):
        raise UserError(f"base {name!r}: expected a model with attention to all tokens in each layer")


def output_bias(model: Any) -> Tensor | None:
    """Return the bias of the output layer of a model, or None."""
    bias: Tensor | None = getattr(model.get_output_embeddings(), "bias", None)
    return bias


def linear_maps(layers: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield the parent, the name and the module of each linear map in `layers`: `nn.Linear` and GPT-2's `Conv1D`."""
    from transformers.pytorch_utils import Conv1D

    for module in list(layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (nn.Linear, Conv1D)):
                yield module, name, child


def _from_config(config: Any) -> Any:
    library = transformers()
    with _quiet(library):
        return library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def _first_line(error: Exception) -> str:
    return f"{error!s:.200}".strip().partition("\n")[0] or type(error).__name__


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Forbid network access of the libraries of Hugging Face in this block, where they read environment variables."""
    previous = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = previous or "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ["HF_HUB_OFFLINE"]


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Show neither progress bars nor notices of `transformers` in this block, except errors."""
    logger = logging.getLogger("transformers")
    level, has_bars = logger.level, library.utils.logging.is_progress_bar_enabled()
    library.utils.logging.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if has_bars:
            library.utils.logging.enable_progress_bar()
