"""Pretrained models of the Hugging Face library `transformers`: their files, configs and tokenizers.

Files are read without network access; only `download_if_missing`, which training calls at its start, downloads a model
of the hub. Code in the folder of a model is never executed.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import re
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorcell.errors import UserError
from factorcell.io.extras import import_extra, missing_package_error

HUB_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(?<!\.gguf)")  # such as gpt2 or org/model
MAX_LAYERS = 1000  # more would take too long to create
# Settings of a model that change its logits after the output layer, which the softmax head does not compute.
UNSUPPORTED = {"final_logit_softcapping": (None, 0), "logit_scale": (None, 1), "logits_scaling": (None, 1)}


@dataclass(frozen=True)
class Source:
    """The files of a pretrained model."""

    folder: Path  # with config.json and the weights, or with the GGUF file
    gguf_file: str | None = None  # the name of the GGUF file

    def __str__(self) -> str:
        return str(self.folder if self.gguf_file is None else self.folder / self.gguf_file)

    def weight_files(self) -> list[Path]:
        """Return the files with the weights, sorted by name; raise `UserError` if there are none."""
        if self.gguf_file is not None:
            return [self.folder / self.gguf_file]
        pattern = "model*.safetensors"  # other names are those of adapters, or of the same weights in another format
        paths = sorted(self.folder.glob(pattern))
        if not paths:
            raise UserError(f"{self.folder}: expected weights in files {pattern}, got none")
        return paths

    def version(self) -> tuple[int, ...]:
        """Return numbers that change when the weights are replaced: the sizes and times of their files."""
        statistics = [path.stat() for path in self.weight_files()]
        return tuple(number for file in statistics for number in (file.st_size, file.st_mtime_ns))

    def digest(self, expected: str = "") -> str:
        """Return the SHA-256 of the weights, or of those of several files; raise a `UserError` if not `expected`."""
        digests = []
        for path in self.weight_files():
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        digest = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
        if expected not in ("", digest):
            expectation = f"expected weights with SHA-256 {expected[:12]}, as in training"
            raise UserError(f"{self}: {expectation}, got {digest[:12]}")
        return digest


_QUIET_LOCK = threading.RLock()


def transformers() -> Any:
    """Import `transformers`; raise `UserError` if it is not installed."""
    return import_extra("transformers", "a backbone of kind huggingface", "transformers")


def architectures() -> Collection[str]:
    """Return the names of the architectures of causal language models in `transformers`."""
    names: Collection[str] = transformers().models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return names


def find_source(base: str) -> Source:
    """Return the files of the pretrained model `base`; raise `UserError` if they are not on this machine."""
    path = Path(base)
    if path.is_dir():
        return Source(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise UserError(f"{path}: expected a folder with a model, or a GGUF file; got another file")
        return Source(path.parent, path.name)
    if not HUB_NAME.fullmatch(base):
        raise UserError(f"base {base!r}: there is no such file or folder")
    return Source(_hub_folder(base))


def identify(base: str, expected_digest: str = "") -> tuple[str, str]:
    """Return the full path or hub name of a base, and the digest of its weights, which must be that expected."""
    source = find_source(base)
    read_config(source)  # raises the error about a model that is not supported
    # The run may be opened from another folder. A link stays as it is: the file may have a name without an ending.
    return (os.path.abspath(base) if Path(base).exists() else base), source.digest(expected_digest)


def download_if_missing(base: str) -> None:
    """Find the files of a pretrained model, or download it from the hub; raise `UserError` if both fail."""
    try:
        source = find_source(base)
        read_config(source)
        source.weight_files()
    except UserError:
        if Path(base).exists() or not HUB_NAME.fullmatch(base):
            raise
        _hub_folder(base, downloads=True)


def _hub_folder(name: str, *, downloads: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=not downloads))
    except Exception as error:  # the library raises errors of many kinds if the network or the model is missing
        problem = f"base {name!r}: this pretrained model is not on this machine"
        if not downloads:
            raise UserError(f"{problem}; download it with `hf download {name}`") from None
        architecture = name if name in architectures() else "llama"
        message = f"{problem} and cannot be downloaded ({first_line(error)})"
        raise UserError(message, [("architecture", architecture)], "to train a new model") from None


def read_config(source: Source) -> Any:
    """Return the `transformers` config of a supported causal language model; raise `UserError` for other files."""
    path = source.folder / (source.gguf_file or "config.json")
    if not path.is_file():
        raise UserError(f"{source.folder}: expected a model with a config.json, got none")
    return _read_config(source, path.stat().st_mtime_ns, path.stat().st_size)


@functools.lru_cache(maxsize=4)  # reading the config of a GGUF file takes seconds
def _read_config(source: Source, time: int, size: int) -> Any:
    library = transformers()
    try:
        with quiet():
            config = library.AutoConfig.from_pretrained(
                source.folder, gguf_file=source.gguf_file, local_files_only=True, trust_remote_code=False
            )
    except ImportError as error:
        raise missing_package_error(str(source), error.name, "transformers") from None
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"{source}: the config of the model cannot be read ({first_line(error)})") from None
    if type(config) not in library.AutoModelForCausalLM._model_mapping:
        raise UserError(f"{source}: expected a causal language model, got the architecture {config.model_type}")
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 0)
    if not (isinstance(layers, int) and 0 < layers <= MAX_LAYERS):
        raise UserError(f"{source}: num_hidden_layers: expected 1 to {MAX_LAYERS}, got {layers!r}")
    check_supported(config, str(source))
    return config


def check_supported(config: Any, where: str) -> None:
    """Raise `UserError` if a model with this `transformers` config changes its logits after the output layer."""
    for name, neutral_values in UNSUPPORTED.items():
        if getattr(config, name, None) not in neutral_values:
            raise UserError(f"{where}: models with {name} are not supported")


def read_tokenizer(source: Source) -> tuple[Any, tuple[int | None, int | None, int | None]]:
    """Return the tokenizer of a pretrained model as a `tokenizers.Tokenizer`, or raise a `UserError`.

    Also return the ids of the unknown token, the start token and the end token; None if there is no such token.
    """
    read_config(source)  # raises the error about a folder without a supported model
    library = transformers()
    try:
        with quiet():
            tokenizer = library.AutoTokenizer.from_pretrained(
                source.folder, gguf_file=source.gguf_file, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # damaged files raise errors of many kinds
        raise UserError(f"{source}: the tokenizer of the model cannot be read ({first_line(error)})") from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{source}: expected a tokenizer with a tokenizer.json, got {type(tokenizer).__name__}")
    # Without the files of a tokenizer, `transformers` may make one of special tokens and a sign for spaces.
    special_tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}.union(
        tokenizer.all_special_tokens
    )
    if len(backend.get_vocab().keys() - special_tokens) <= 1:
        raise UserError(f"{source}: expected a tokenizer with a tokenizer.json, got one without tokens of texts")
    return backend, (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)


def first_line(error: Exception) -> str:
    return f"{error!s:.200}".strip().partition("\n")[0] or type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show neither progress bars nor notices of `transformers` in this block, except errors.

    The block changes standard error and the logger of the whole process, so other threads wait before their blocks.
    """
    with _QUIET_LOCK:
        logger = logging.getLogger("transformers")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # progress bars
                yield
        finally:
            logger.setLevel(level)
