"""A run with a Transformer in one context, as a plain model of the library `transformers`.

The matrices of the maps and of the output layer, and the biases of the maps, become weights of the model. Its output
layer has a bias t (V,) in few architectures only. If the last layer of the others is a LayerNorm h = g * z + d, whose z
have the sum 0, their output matrix W can contain the bias:

    W h + t = W' (z + 1),   W' = M - mean(M) + (W d + t) / H,   M = W diag(g)

mean(M) is the mean of each row. The model then has g = 1 and d = 1. The outputs of an RMSNorm have no constant sum, so
an architecture with an RMSNorm and without a bias of the output layer cannot contain t.

Shapes: V vocabulary, H vector of the backbone.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from factorcell.errors import UserError
from factorcell.hf.context_base import BIAS_SETTINGS
from factorcell.io import files
from factorcell.io.pretrained import first_line, quiet, transformers
from factorcell.runs.fixed_context import FixedContext

FINAL_NORMS = ("ln_f", "final_layer_norm", "final_layernorm", "norm")  # names of the last layer in architectures
PROBE_TOKENS = 8  # length of the text that compares the written model with the run
MAX_DIFFERENCE = 0.05  # largest difference of probabilities in this text; bfloat16 rounds


@dataclass(frozen=True)
class Architecture:
    """The causal language model of `transformers` that a run adapts, without its weights.

    Attributes:
        config: Its config.
        model: The model on PyTorch's meta device.
    """

    config: Any
    model: Any

    @classmethod
    def of(cls, fixed: FixedContext, **settings: Any) -> "Architecture":
        """Return the architecture of the base, with `settings` instead of those of its config."""
        library = transformers()
        config = copy.deepcopy(fixed.backbone.base.config)
        if settings and config.get_text_config(decoder=True) is not config:
            raise UserError(f"{fixed.run.folder}: merged expects a base that reads only texts; use lora")
        for name, value in settings.items():
            setattr(config, name, value)
        if hasattr(config, "quantization_config"):  # of a base in GGUF, whose weights have become floats
            del config.quantization_config
        with quiet(), torch.device("meta"):
            model = library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        config.architectures = [type(model).__name__]
        return cls(config, model)

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module of the model."""
        return str(next(path for path, other in self.model.named_modules() if other is module))

    def has_bias(self, path: str) -> bool:
        """Whether the map at `path` has a bias."""
        return getattr(self.model.get_submodule(path), "bias", None) is not None

    @property
    def has_output_bias(self) -> bool:
        """Whether the output layer has a bias."""
        return self.has_bias(self.path_of(self.model.get_output_embeddings()))

    def final_norm(self) -> str | None:
        """Return the path of the last layer of the base if it is a LayerNorm with a bias, otherwise None."""
        for path, module in self.model.base_model.named_modules():
            if path.removeprefix("decoder.") in FINAL_NORMS and isinstance(module, nn.LayerNorm):
                return self.path_of(module) if module.bias is not None else None
        return None


def find_biases_without_place(fixed: FixedContext) -> tuple[bool, bool]:
    """Return whether the architecture has no place for a changed bias of a map, and for that of the output layer."""
    architecture = _with_biases(fixed)
    map_paths = [projection.path for projection, shift in fixed.maps() if shift.bias is not None]
    has_output_place = architecture.has_output_bias or architecture.final_norm() is not None
    return not all(map(architecture.has_bias, map_paths)), fixed.changes_output_bias and not has_output_place


def write_merged_model(fixed: FixedContext, folder: Path) -> None:
    """Write the model of a run in one context to `folder`; the caller has checked that it can contain all biases.

    Raises:
        UserError: The architecture is unusual, so that the written model does not predict as the run does.
    """
    architecture = _with_biases(fixed)
    architecture.config.save_pretrained(folder)
    tensors = save(_tensors(fixed, architecture), {"format": "pt"})
    files.write(folder / "model.safetensors", tensors)
    _compare_with_run(fixed, folder)


def _with_biases(fixed: FixedContext) -> Architecture:
    """Return the architecture of the merged model, whose maps have a bias if the context changes one."""
    base = Architecture.of(fixed)
    is_folded = not base.has_output_bias and base.final_norm() is not None and fixed.changes_output_bias
    settings: dict[str, Any] = {
        "vocab_size": fixed.vocabulary_size,
        "bos_token_id": fixed.start_id,
        "eos_token_id": fixed.run.model.specials.end,
        "pad_token_id": None,
        "tie_word_embeddings": fixed.is_tied and not is_folded,
        "dtype": fixed.backbone.maps.projections[0].weight.dtype,
    }
    if any(shift.bias is not None for _, shift in fixed.maps()):
        settings |= {name: True for name in BIAS_SETTINGS if hasattr(base.config, name)}
    return Architecture.of(fixed, **settings)


def _tensors(fixed: FixedContext, architecture: Architecture) -> dict[str, Tensor]:
    """Return the weights of the merged model by name, in the number type of its config."""
    backbone, model, dtype = fixed.backbone, architecture.model, architecture.config.dtype
    size = fixed.vocabulary_size
    names = set(model.state_dict())
    inputs, outputs = map(architecture.path_of, (model.get_input_embeddings(), model.get_output_embeddings()))
    tensors = {f"{model.base_model_prefix}.{name}": tensor for name, tensor in backbone.base.state_dict().items()}
    tensors = {name: tensor.detach().cpu().float() for name, tensor in tensors.items() if name in names}
    for projection, shift in fixed.maps():
        path, matrix = projection.path, projection.matrix().detach().float()
        if (factors := shift.low_rank_factors()) is not None:
            matrix = matrix + factors[0].float() @ factors[1].float()
        if shift.scale is not None:
            matrix = matrix * shift.scale[0].float()
        # `nn.Linear` stores a matrix as (O, D), and GPT-2's Conv1D as (D, O).
        tensors[f"{path}.weight"] = (matrix.T if isinstance(model.get_submodule(path), nn.Linear) else matrix).cpu()
        if architecture.has_bias(path):
            bias = projection.shifted_bias(shift)
            tensors[f"{path}.bias"] = matrix.new_zeros(matrix.shape[1]) if bias is None else bias.detach().flatten()
    tensors[f"{inputs}.weight"] = fixed.run.model.embedding.detach()[:size].cpu()
    if architecture.has_output_bias:
        tensors[f"{outputs}.bias"] = fixed.output_bias[:size].cpu()
    if not architecture.config.tie_word_embeddings:
        matrix = fixed.output_matrix[:size].float().cpu()
        if (norm := architecture.final_norm()) is not None and not architecture.has_output_bias:
            norm_names = f"{norm}.weight", f"{norm}.bias"
            gain, norm_bias = (tensors[name] for name in norm_names)
            matrix = _contain_bias(matrix, gain, norm_bias, fixed.output_bias[:size].float().cpu())
            tensors |= {name: torch.ones_like(gain) for name in norm_names}
        tensors[f"{outputs}.weight"] = matrix
    return {name: tensor.to(dtype).cpu().contiguous() for name, tensor in tensors.items()}


def _contain_bias(matrix: Tensor, gain: Tensor, norm_bias: Tensor, bias: Tensor) -> Tensor:
    """Return W' (V, H) of the module header from W (V, H), g (H,), d (H,) and t (V,)."""
    scaled = matrix * gain
    constant = matrix @ norm_bias + bias
    return scaled - scaled.mean(1, keepdim=True) + constant[:, None] / matrix.shape[1]


def _compare_with_run(fixed: FixedContext, folder: Path) -> None:
    """Raise `UserError` unless the model in `folder` gives the probabilities of the run for a random text."""
    library, run = transformers(), fixed.run
    size, start = fixed.vocabulary_size, fixed.start_id
    random = torch.randint(size, (PROBE_TOKENS,), generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([random.new_tensor([start]), random])[None]
    names = tokens.new_tensor([[start, *fixed.name_ids] if fixed.name_ids else []])
    where = f"{run.folder}: the architecture {fixed.backbone.base.config.model_type} cannot be merged"
    try:
        with quiet():
            model = library.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # architectures refuse weights with errors of many kinds
        raise UserError(f"{where} ({first_line(error)})") from None
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.cat([names, tokens], dim=1)).logits[0, names.shape[1] :].float()
        expected = fixed.log_probabilities(fixed.vectors(tokens.to(run.device))[0])[:, :size].cpu()
    if start != run.model.specials.end:
        for scores in (logits, expected):
            scores[:, start] = -torch.inf  # the start token is never predicted
    difference = float((logits.softmax(-1) - expected.softmax(-1)).abs().max())
    if not difference <= MAX_DIFFERENCE:
        raise UserError(f"{where}: its probabilities differ by {difference:.2g} from those of the run")
