"""The base and the arguments of context adapters (`context_model`): which are valid, and which tensors are trained.

Shapes: N values of a base.
"""

import copy
import itertools
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from factorcell.config import Notice, UserError
from factorcell.data.schema import ContextSchema
from factorcell.model.adapted_modules import Projection
from factorcell.model.adapters import find_adapter
from factorcell.model.context_config import ContextConfig

BIAS_SETTINGS = ("attention_bias", "mlp_bias")  # settings of a config that give the maps of its layers a bias
# Classes of layers whose maps cannot be adapted: they read the weights of a map instead of calling it, or, as XLNet,
# call it with inputs whose first dimension is not that of the texts.
REFUSED_LAYERS = re.compile("Mamba|BambaMixer|FalconH1Mixer|Reformer|XLNet")
VALUES_PER_TENSOR = 4  # values of each tensor of a base that identify it
TOLERANCE = 0.02  # relative difference of values that the number type of a base may cause


def check_base(model: Any) -> None:
    """Raise `UserError` unless `model` is a causal language model of `transformers` without adapters."""
    if not (isinstance(model, nn.Module) and getattr(model, "get_output_embeddings", lambda: None)() is not None):
        raise UserError(f"model: expected a causal language model of transformers, got {type(model).__name__}")
    names = (type(module).__name__ for module in model.modules())
    if refused_name := next(filter(REFUSED_LAYERS.search, names), None):
        raise UserError(f"model: the linear maps of {refused_name} cannot be adapted")
    if any(isinstance(module, Projection) for module in model.modules()):
        raise UserError("model: expected a model without context adapters, got one that has them")
    if any(getattr(getattr(module, "_hf_hook", None), "offload", False) for module in model.modules()):
        raise UserError(
            "model: expected weights on devices, got weights that accelerate has offloaded; use more devices"
        )


def check_options(config: Any, schema: Any) -> None:
    """Raise `UserError` unless `config` is a `ContextConfig` with known adapters, and `schema` has no prompts."""
    if not isinstance(config, ContextConfig):
        raise UserError(f"config: expected a ContextConfig, got {type(config).__name__}")
    if not isinstance(schema, ContextSchema):
        raise UserError(f"schema: expected the result of read_schema, got {type(schema).__name__}")
    if schema.prompts:
        raise UserError("schema: expected no prompts; put the text of a prompt into the input tokens")
    for name in config.adapt:
        find_adapter(name)


def check_argument_names(options: Mapping[str, Any]) -> None:
    """Raise `UserError` if the name of an option is nearly that of the argument `context`, which bases would ignore."""
    for name in options:
        if name.startswith("context"):
            raise UserError(f"{name}: unknown argument; expected context")


def refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """Return a method that refuses a call of the base's method `name`, which would not use the adapters."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise UserError(f"{name}: not supported; call {instead}")

    return refuse


def bias_names(model: Any) -> set[str]:
    """Return the names of the biases of a plain model."""
    return {name for name in model.state_dict() if name.endswith(".bias")}


def declare_biases(base: Any, former: set[str]) -> None:
    """Let the config of a plain model say which maps have got a bias, so that a saved model is loaded with its biases.

    A `Notice` says if the architecture has no place for some of them.

    Args:
        base: The model.
        former: The names of its biases before.
    """
    added = bias_names(base) - former
    if not added:
        return
    config, lost = base.config.get_text_config(decoder=True), added - _declared_biases(base)
    for setting in BIAS_SETTINGS:
        if lost and getattr(config, setting, None) is False:
            setattr(config, setting, True)
            remaining = added - _declared_biases(base)
            setattr(config, setting, len(remaining) < len(lost))
            lost = remaining
    if lost:
        problem = f"{type(base).__name__} has no place for a bias such as {min(lost)}"
        warnings.warn(Notice(f"{problem}; a saved model loses it when it is loaded"), stacklevel=3)


def _declared_biases(base: Any) -> set[str]:
    """Return the names of the biases of a new model with the config of `base`."""
    with torch.device("meta"):
        return bias_names(type(base)(copy.deepcopy(base.config)))


def base_values(base: Any) -> Tensor:
    """Return a few values (N,) of each tensor of a model, which identify its weights in any number type.

    Tensors that are not in memory, as in a model that will be loaded later, give NaN.
    """
    values = []
    for parameter in base.parameters():
        last = parameter.numel() - 1
        places = torch.tensor([last * index // (VALUES_PER_TENSOR - 1) for index in range(VALUES_PER_TENSOR)])
        is_in_memory = not parameter.is_meta and parameter.numel() > 0
        flat = parameter.detach().reshape(-1)[places.to(parameter.device)] if is_in_memory else None
        values.append(torch.full((VALUES_PER_TENSOR,), torch.nan) if flat is None else flat.float().cpu())
    return torch.cat(values)


def warn_of_other_base(values: Tensor, expected: Tensor, folder: Path) -> None:
    """Emit a `Notice` if the values (N,) of a base are not those of the base that the adapters in `folder` had."""
    if not _are_equal(values, expected):
        problem = "expected the weights of the base with which the adapters were trained, got others"
        warnings.warn(Notice(f"{folder}: {problem}; predictions will be worse"), stacklevel=3)


def _are_equal(values: Tensor, expected: Tensor) -> bool:
    """Return whether the values (N,) of two bases are equal, up to the rounding of a number type."""
    if len(values) != len(expected):
        return False
    is_known = values.isfinite() & expected.isfinite()
    if not is_known.any():
        return True
    largest = float(expected[is_known].abs().max())
    return torch.allclose(values[is_known], expected[is_known], rtol=TOLERANCE, atol=TOLERANCE**2 * largest)


def tensors_to_save(model: Any, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the trained tensors of a model from its complete state, in the memory of the processor.

    Raises:
        UserError: A tensor is missing; then another model could not load the others.
    """
    # `torch.compile` adds `_orig_mod` to the names of a module that it compiles.
    tensors = {name.replace("_orig_mod.", ""): tensor for name, tensor in state.items()}
    names = sorted(_trained_names(model))
    if missing := [name for name in names if name not in tensors]:
        raise UserError(f"state_dict: expected {len(names):,} tensors, such as {missing[0]}, which it lacks")
    return {name: tensors[name].detach().cpu().contiguous() for name in names}


def _trained_names(model: Any) -> set[str]:
    """Return the names of the parameters of the adapters, and of those of the base that a user has made trainable."""
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names: frozenset[str] = model.adapter_names
    return trainable | names


def keep_trained(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Remove frozen tensors from the state of a model; a hook of `state_dict`."""
    trained = {prefix + name for name in _trained_names(model)}
    for name in [name for name in state if name.startswith(prefix) and name not in trained]:
        del state[name]


def ignore_frozen(model: nn.Module, keys: Any) -> None:
    """Do not report frozen tensors as missing; a hook of `load_state_dict`.

    The model may be a part of another one, whose name for a tensor ends with that of the model.
    """
    tensors = itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers())
    trained = _trained_names(model)
    frozen = tuple(f".{name}" for name, _ in tensors if name not in trained)
    keys.missing_keys[:] = [name for name in keys.missing_keys if not f".{name}".endswith(frozen)]
