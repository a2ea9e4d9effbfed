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
from factorcell.io.findings import Finding, report
from factorcell.nn.backbones.adapted_modules import Projection, has_name, has_quantized_values

# Settings of a config that give maps of its layers a bias, and a part of the names of these maps.
BIAS_SETTINGS = {"attention_bias": "attn.", "mlp_bias": "mlp."}
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


def find_modules_to_save(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules whose paths end with one of `names`; raise `UserError` if one is missing or quantized."""
    modules = []
    for name in names:
        matches = [module for path, module in model.named_modules() if has_name(path, name)]
        weights = [weight for module in matches for weight in module.parameters()]
        if not weights or any(map(has_quantized_values, weights)):
            raise UserError(f"modules_to_save: expected modules with weights that are not quantized, got {name}")
        modules += matches
    return modules


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


def declare_changes(base: Any, former: set[str]) -> None:
    """Let the config of a merged model say what has changed, so that a saved model is loaded with it.

    Maps have got a bias, or the output layer has other weights than the embeddings. `former` are the names of the
    biases before. A finding says if the architecture has no place for some of them.
    """
    config = base.config.get_text_config(decoder=True)
    if base.get_output_embeddings().weight is not base.get_input_embeddings().weight:
        config.tie_word_embeddings = base.config.tie_word_embeddings = False
    added = bias_names(base) - former
    if not added:
        return
    for setting, part in BIAS_SETTINGS.items():
        if getattr(config, setting, None) is False and any(part in name for name in added):
            setattr(config, setting, True)
    with torch.device("meta"):
        lost = added - bias_names(type(base)(copy.deepcopy(base.config)))
    if lost:
        problem = f"{type(base).__name__} has no place for a bias such as {min(lost)}"
        report(Finding("lost bias", f"{problem}; a saved model loses it when it is loaded"))


def report_other_base(trained_with: str, model: Any, folder: Path) -> None:
    """Report if the adapters in `folder` were trained with a base of another name than that of `model`."""
    expected, name = Path(trained_with).name, Path(str(getattr(model, "name_or_path", ""))).name
    if expected and name and name != expected:
        problem = f"expected the base of training, {expected}, got {name}"
        report(Finding("other base", f"{folder}: {problem}; with other weights, predictions are worse"))


def check_tensors(tensors: Mapping[str, Tensor], adapters: Mapping[str, Tensor], base: Any, folder: Path) -> None:
    """Raise `UserError` unless the `tensors` in `folder` are those of new `adapters`, and perhaps some of the base."""
    of_base = {f"base.{name}": values for name, values in base.named_parameters(remove_duplicate=False)}
    expected = {name: tuple(values.shape) for name, values in {**of_base, **adapters}.items()}
    shapes = {name: tuple(values.shape) for name, values in tensors.items()}
    for name in sorted({*shapes, *adapters}):
        if shapes.get(name) != expected.get(name):
            problem = f"{name}: expected {shapes.get(name, 'nothing')}, got {expected.get(name, 'nothing')}"
            remedy = "use the base and the options of training, and the same number of tokens"
            raise UserError(f"{folder}: does not fit this base ({problem}); {remedy}")


def tensors_to_save(model: Any, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the trained tensors of a model from its complete state on the CPU; raise `UserError` if one is missing."""
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


def register_state_hooks(model: nn.Module) -> None:
    """Let the state of a model contain only its trained tensors."""
    model.register_state_dict_post_hook(_keep_trained)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(_train_loaded)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_post_hook(_ignore_frozen)  # type: ignore[no-untyped-call]


def _train_loaded(model: Any, state: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
    """Make tensors of the base trainable that a state has, as when it was saved; a hook of `load_state_dict`."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    loaded = {name for name in parameters if prefix + name in state}
    # A complete state does not say which tensors were trained; it may have tensors that are tied only once.
    if {id(parameters[name]) for name in loaded} == set(map(id, parameters.values())):
        return
    for name in loaded - model.trained_names:
        parameters[name].requires_grad_()
    _trained_names(model)


def _keep_trained(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Remove frozen tensors from the state of a model; a hook of `state_dict`."""
    trained = {prefix + name for name in _trained_names(model)}
    for name in [name for name in state if name.startswith(prefix) and name not in trained]:
        del state[name]


def _ignore_frozen(model: nn.Module, keys: Any) -> None:
    """Do not report frozen tensors as missing; a hook of `load_state_dict`.

    The model may be a part of another one, whose name for a tensor ends with that of the model.
    """
    tensors = itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers())
    trained = _trained_names(model)
    frozen = tuple(f".{name}" for name, _ in tensors if name not in trained)
    keys.missing_keys[:] = [name for name in keys.missing_keys if not f".{name}".endswith(frozen)]
