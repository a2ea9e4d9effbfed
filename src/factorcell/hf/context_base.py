"""The base and the arguments of context adapters (`context_model`): which are valid, and which tensors are trained."""

import copy
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from factorcell.adapters.adapters import find_adapter
from factorcell.errors import UserError
from factorcell.hf.contexts import ContextConfig
from factorcell.io.digests import sha256_of
from factorcell.io.findings import Finding, report
from factorcell.nn.backbones.adapted_modules import Projection

BIAS_SETTINGS = ("attention_bias", "mlp_bias")  # settings of a config that give the maps of its layers a bias
# Classes of layers whose maps cannot be adapted: they read the weights of a map instead of calling it, or, as XLNet,
# call it with inputs whose first dimension is not that of the texts.
REFUSED_LAYERS = re.compile(
    "Mamba|BambaMixer|FalconH1Mixer|Reformer|XLNet|Longformer|LEDEncoder|LEDDecoder|NllbMoe|SwitchTransformers"
)


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


def check_options(config: Any) -> None:
    """Raise `UserError` unless `config` is a `ContextConfig` with known adapters, and its schema has no prompts."""
    if not isinstance(config, ContextConfig):
        raise UserError(f"config: expected a ContextConfig, got {type(config).__name__}")
    if config.columns and not config.schema.variables:
        raise UserError("config: expected the result of its method fit(table), which reads the columns")
    if config.schema.prompts:
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

    A finding says if the architecture has no place for some of them.

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
        report(Finding("lost bias", f"{problem}; a saved model loses it when it is loaded"))


def _declared_biases(base: Any) -> set[str]:
    """Return the names of the biases of a new model with the config of `base`."""
    with torch.device("meta"):
        return bias_names(type(base)(copy.deepcopy(base.config)))


# By the name of a tensor: its shape and the SHA-256 of its numbers, rounded to bfloat16; None if it has no digest.
Digests = Mapping[str, Sequence[Any] | None]


def base_digests(base: Any) -> Digests:
    """Return the digests of the tensors of a model."""
    return {name: _digest(values.detach()) for name, values in base.named_parameters()}


def _digest(values: Tensor) -> list[Any] | None:
    """Return the shape and the SHA-256 of a tensor.

    Tensors of float16, which rounds unlike bfloat16, and those that are not in the memory of this process have none.
    """
    if values.is_meta or not values.numel() or values.dtype == torch.float16:
        return None
    values = values.float() if values.dtype == torch.float64 else values  # rounded as if it were of float32
    rounded = (values.bfloat16() if values.is_floating_point() else values).cpu()
    if type(rounded) is not Tensor:  # a part of a tensor that several processes share
        return None
    return [list(values.shape), sha256_of(rounded.contiguous().flatten().view(torch.uint8).numpy().data)]


def report_other_base(digests: Digests, expected: Digests, folder: Path) -> None:
    """Report if tensors of a base are not those with which the adapters in `folder` were trained.

    Tensors of another shape, such as a table with new tokens, are not compared.

    Args:
        digests: The digests of the base, except those of tensors that the folder has.
        expected: The digests of the base of training.
        folder: The folder, for the finding.
    """
    names = sorted({*digests, *expected})
    different = []
    for name in names:
        known = [source[name] for source in (digests, expected) if name in source]
        shapes_and_hashes = [digest for digest in known if digest is not None]
        if len(known) == 1 and known[0] is not None:
            different.append(name)
        elif len(shapes_and_hashes) == 2:
            (shape, sha256), (former_shape, former_sha256) = shapes_and_hashes
            if shape == former_shape and sha256 != former_sha256:
                different.append(name)
    if different:
        problem = "expected the weights of the base with which the adapters were trained, got others"
        count = f"in {len(different):,} of {len(names):,} tensors, such as {different[0]}"
        report(Finding("other base", f"{folder}: {problem} {count}; predictions will be worse"))


def check_tensors(tensors: Mapping[str, Tensor], adapters: Mapping[str, Tensor], base: Any, folder: Path) -> None:
    """Raise `UserError` unless the tensors in `folder` are those of the adapters, and perhaps some of the base.

    Args:
        tensors: The tensors in the folder, by name.
        adapters: The tensors of new adapters.
        base: The model, without adapters.
        folder: The folder.
    """
    of_base = {f"base.{name}": values for name, values in base.named_parameters(remove_duplicate=False)}
    expected = {**of_base, **adapters}
    problems = [f"no tensor {name}" for name in sorted(adapters) if name not in tensors]
    problems += [f"unknown tensor {name}" for name in sorted(tensors) if name not in expected]
    problems += [
        f"{name}: expected the shape {tuple(values.shape)}, got {tuple(expected[name].shape)}"
        for name, values in tensors.items()
        if name in expected and values.shape != expected[name].shape
    ]
    if problems:
        remedy = "load the base of training, with the same number of tokens"
        raise UserError(f"{folder}: does not fit this base ({problems[0]}); {remedy}")


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
    """Return the names of the parameters of the adapters, and of those of the base that a user has made trainable.

    They remain in `model.trained_names`, so that what was once saved is saved again, also if it is then frozen.
    """
    names: set[str] = model.trained_names
    names |= {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return names


def train_loaded(model: Any, state: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
    """Make tensors of the base trainable that a state has, as when it was saved; a hook of `load_state_dict`."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded = {name for name in parameters if prefix + name in state}
    if len(loaded) == len(parameters):  # a complete state does not say which tensors were trained
        return
    for name in loaded - model.trained_names:
        parameters[name].requires_grad_()
    _trained_names(model)


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
