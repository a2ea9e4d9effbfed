"""Export of a run to a device: files with which a browser completes texts and learns its user, without a network.

docs/formats.md describes the files. Matrices are rounded to int8, with a scale for each row; the values of context
columns are fixed, so that a context vector depends only on the user.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from factorcell.completion.blend import BlendWeights
from factorcell.completion.completer import TextFilter, public_filter
from factorcell.completion.online import Learner
from factorcell.completion.popularity import popular_counts
from factorcell.data import private_content, text_folds
from factorcell.data.columns.context import Context
from factorcell.data.counts import POPULARITY
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.nn.learning import UserModel
from factorcell.runs.run import Run

FORMAT = 1  # number of the format of the files
NO_LIMIT = 1e30  # `max_norm` of a rule without a limit, because JSON has no infinity
MODEL, WEIGHTS, RULES = "model.json", "weights.safetensors", "rules.json"
LARGEST = 127  # the largest integer in int8 whose negative is in int8


def export_to_device(
    run: Run,
    folder: str | Path,
    *,
    context: Mapping[str, Any] | None = None,
    unknown: str = "error",
    blocked: Sequence[str] = (),
    is_allowed: TextFilter | None = None,
) -> None:
    """Write a run with users in one context as files for a device.

    Args:
        run: The run; its model has one coupled layer, and its tokenizer is `char`.
        folder: The folder to write, which does not exist or is empty.
        context: A value for each context column; other columns have their expected values.
        unknown: The policy for values that training never saw: "group", "expected" or "error".
        blocked: Phrases that are never suggested, as a `BlockList` reads them.
        is_allowed: Returns whether a popular text may be suggested, as a `BlockList` of the same phrases does; private
            content never is.

    Raises:
        UserError: The folder is not empty, the context is not valid, or a device cannot run the model.
    """
    path, learner = Path(folder), Learner(run, unknown=unknown)
    model = _checked_model(run, learner)
    encoded = run.read([""], [dict(context or {})], unknown=unknown).context(np.zeros(1, np.int64))
    popular, tensors = popular_counts(run, public_filter(is_allowed)), _tensors(run, model, encoded)
    files.create_new_folder(folder)
    new_user = {"user": torch.from_numpy(learner.unknown_vector)}
    files.save_tensors(path / WEIGHTS, tensors | new_user, {"run": run.fingerprint.hex()})
    popular.save(path / POPULARITY)
    rules = {"private": private_content.tables(), "text": text_folds.tables(), "blocked": [*blocked]}
    files.write_json(path / RULES, rules)
    files.write_versioned(path / MODEL, _settings(run, learner, model, path), FORMAT)


def _checked_model(run: Run, learner: Learner) -> UserModel:
    """Return the model as compiled code reads it; raise a `UserError` unless a device can run it."""
    if learner.user_model is None:
        problem = "expected a recurrent model with one coupled layer and the adapters concat or factor"
        raise UserError(f"{run.folder}: {problem}; train with --cell coupled --layers 1 --adapt factor")
    if (kind := run.config.tokenizer.kind) != "char":
        raise UserError(f"{run.folder}: expected the tokenizer char, got {kind}; train with --tokenizer char")
    if run.model.names is not None or run.schema.prompts:
        raise UserError(f"{run.folder}: a device reads no names or prompts before texts; train without them")
    return learner.user_model


def _tensors(run: Run, model: UserModel, context: Context) -> dict[str, Tensor]:
    """Return the arrays of the model by their names in native/kernels.h, matrices rounded to integers and scales."""
    arrays = {**model.arrays, **{name: array[0] for name, array in model.context_biases(context).items()}}
    tensors = {name: array for name, array in arrays.items() if array.dim() == 1}
    for name in [name for name in arrays if name not in tensors]:
        rows = arrays[name].flatten(1)
        if not rows.isfinite().all():
            raise UserError(f"{run.folder}: {name} has numbers that are not finite; train a new run")
        scales = rows.abs().amax(1, keepdim=True) / LARGEST
        integers = (rows / scales.clamp_min(torch.finfo().tiny)).round().to(torch.int8)
        tensors |= {name: integers.view(arrays[name].shape), f"{name}.scale": scales[:, 0]}
    return tensors


def _settings(run: Run, learner: Learner, model: UserModel, folder: Path) -> dict[str, Any]:
    """Return the content of `MODEL`: sizes, tokens, rule and weights of the blend, and the digests of other files."""
    weights, rule, names = BlendWeights.load(run.folder), learner.rule, (WEIGHTS, POPULARITY, RULES)
    digests = files.digests(folder, names)
    return {
        # A user whom another model, in another context, or another rule has learned is learned again.
        "run": hashlib.sha256(f"{digests[WEIGHTS]} {rule}".encode()).hexdigest(),
        "sizes": dict(model.numbers),
        "tokens": run.tokenizer.tokens,
        "specials": run.tokenizer.specials._asdict(),
        "lowercase": run.config.tokenizer.lowercase,
        "max_tokens": run.config.data.max_tokens,
        "rule": {"optimizer": rule.optimizer, "rate": rule.rate, "max_norm": min(learner.max_vector_norm, NO_LIMIT)},
        "blend": {"weights": weights.array.tolist(), "threshold": weights.threshold},
        "files": {name: {"sha256": digest} for name, digest in digests.items()},
    }
