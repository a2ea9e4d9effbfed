"""Context adapters for a causal language model of `transformers` in a training loop of your own.

The interface follows the library PEFT. The weights of the model stay frozen, and its linear maps get a change that
depends on the context of each text (`adapted_modules`):

    config = ContextConfig(["section", Number("year")], rank=8).fit(rows)
    model = get_context_model(base, config)
    loss = model(input_ids, labels=labels, context=rows).loss  # a context per text
    model.save_pretrained("adapters")

Shapes: B texts, K context, V tokens of the vocabulary.
"""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from factorcell.adapters.encoder import FROZEN_BASE_STD, ContextEncoder
from factorcell.config import Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import ContextSchema
from factorcell.errors import UserError
from factorcell.hf.context_base import (
    bias_names,
    check_argument_names,
    check_base,
    check_options,
    check_tensors,
    declare_changes,
    find_modules_to_save,
    refused,
    register_state_hooks,
    report_other_base,
    tensors_to_save,
)
from factorcell.hf.contexts import ALL_LINEAR, ContextConfig, ContextReader
from factorcell.hf.lora_files import expert_problem, low_rank_change, write_lora
from factorcell.io import files
from factorcell.io.pretrained import HUB_NAME, first_line
from factorcell.nn.backbones.adapted_modules import (
    Adaptation,
    AdaptedModules,
    Projection,
    applied,
    checkpoint_contexts,
    find_adaptation,
    with_constant,
)
from factorcell.nn.backbones.backbone import BackboneSizes
from factorcell.nn.backbones.growing_cache import growing_caches

CONFIG_FILE, SCHEMA_FILE, WEIGHTS_FILE = "context_config.json", "schema.json", "context_model.safetensors"
CHECKPOINT_FILE = "model.safetensors"  # in a checkpoint of the `Trainer`, the tensors of `state_dict`
FILE_FORMAT = 1
NO_CONTEXT = (
    "context: expected contexts in training (with the Trainer, by a ContextCollator and remove_unused_columns=False), "
    "or {} for the expected context, got None"
)


def get_context_model(model: Any, config: ContextConfig) -> "ContextModel":
    """Add context adapters to a causal language model of `transformers`, whose weights become frozen.

    The linear maps of `model` are replaced in place.

    Args:
        model: The model.
        config: The options of the adapters, with the context variables that `ContextConfig.fit` has read.

    Returns:
        The model with adapters, which computes as `model` before training.

    Raises:
        UserError: The options do not fit the model, or the columns have not been read.
    """
    return ContextModel(model, config)


class SavedTensors(NamedTuple):
    """The trained tensors in a folder."""

    folder: Path
    tensors: Mapping[str, Tensor]


class ContextModel(nn.Module):
    """A causal language model whose weights depend on the context of each text.

    Only the tensors of the context are trained, and `state_dict` contains no others.

    Attributes:
        base: The model of `transformers` with adapted linear maps, without a wrapper of `torch.compile`.
        context_config: The options of the adapters; `config` is that of the base.
        schema: The context variables.
        encoder: The map of contexts to context vectors.
        trained_names: The names of the parameters that files store: those of the adapters, and those of the base that
            were trainable when tensors were saved or loaded.

    The base may be divided among several devices: each adapter is on the device of the map that it changes.
    """

    is_quantized = False  # also if the base is: the Trainer refuses quantized models without adapters
    generate_batch = refused("generate_batch", "generate")
    init_continuous_batching = refused("init_continuous_batching", "generate")
    continuous_batching_context_manager = refused("continuous_batching_context_manager", "generate")

    def __init__(self, model: Any, config: ContextConfig, *, saved: SavedTensors | None = None) -> None:
        """Add adapters to `model`, new or `saved` ones; an error leaves the model as it was."""
        super().__init__()
        check_base(model)
        check_options(config)
        # The wrapper of `torch.compile` would change the names of all tensors; a tuple hides it from `parameters`.
        self._compiled = (model,) if hasattr(model, "_orig_mod") else ()
        model = getattr(model, "_orig_mod", model)
        schema = config.schema
        self.base, self.context_config, self.schema = model, config, schema
        size = config.context_size if schema.variables else 0
        trained_modules = find_modules_to_save(model, config.modules_to_save)
        is_all = config.target_modules == ALL_LINEAR  # of the layers; names may also be those of other maps
        adapted = model.base_model if is_all else model
        self.maps = AdaptedModules(
            adapted,
            BackboneSizes(inputs=0, context=size + 1, adapt=config.adapt, rank=config.rank),
            targets=() if is_all else config.target_modules,
            layers=cast(tuple[int, ...] | None, config.layers_to_transform),
            prefix=next(name for name, module in model.named_modules() if module is adapted),
            excluded=[*trained_modules, *([model.get_output_embeddings()] if is_all else [])],
            shared_rank=config.shared_rank,
        )
        for projection in self.maps.projections:
            projection.scaling = config.alpha / (config.rank**0.5 if config.use_rslora else config.rank)
            projection.dropout = 0.0 if projection.is_embedding else config.lora_dropout  # as in PEFT
        sizes = replace(Config().model, context_size=config.context_size, variable_size=config.variable_size)
        self.encoder = ContextEncoder(sizes, schema, FROZEN_BASE_STD).to(model.device) if size else None
        self._reader = ContextReader(schema)
        adapters = {f"base.{name}": values for name, values in self.maps.adapter_tensors().items()}
        adapters |= {name: values for name, values in self.named_parameters() if not name.startswith("base.")}
        self.trained_names = set(adapters)
        if saved is not None:
            check_tensors(saved.tensors, adapters, model, saved.folder)
        # The model changes from here on, where nothing is refused any more.
        self.maps.attach()
        model.requires_grad_(False)
        for module in trained_modules:
            module.requires_grad_()
        for values in adapters.values():
            values.requires_grad_()
        self._has_adapters = True
        register_state_hooks(self)
        if saved is not None:
            self.load_state_dict(saved.tensors)
        self.train(model.training)
        if getattr(model, "is_activation_checkpointing", False):
            self.activation_checkpointing_enable()  # again, so that layers read their context

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of this model or else of the base, such as `config` of a model of `transformers`."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)

    def _get_name(self) -> str:
        """Return the class name of the base, by which the Trainer with label smoothing recognizes a language model."""
        return type(self.base).__name__

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        context: Any = None,
        **options: Any,
    ) -> Any:
        """Call the base with the weights of the context of each text.

        Args:
            input_ids: Token ids (B, T).
            attention_mask: Which tokens are not padding (B, T).
            labels: Targets (B, T) of the loss.
            context: A mapping from columns to values, for all texts or for each text; the result of `read_contexts`;
                context vectors (B, K) or (1, K); or {} for the expected context, which is also that of None unless
                the pass is one of training: with gradients, and with labels or in training mode.
            **options: Other arguments of the base.

        Returns:
            The output of the base.

        Raises:
            UserError: A column or a value is unknown, the number of contexts is not that of the texts, or training has
                no contexts.
        """
        check_argument_names(options)
        inputs = options.get("inputs_embeds") if input_ids is None else input_ids
        is_training = torch.is_grad_enabled() and (self.training or labels is not None)
        with applied(self.adapt(context, inputs, needs_context=is_training)):
            base = self._compiled[0] if self._compiled else self.base
            return base(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **options)

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *arguments: Any, context: Any = None, **options: Any) -> Any:
        """Call `generate` of the base; the beams and samples of a text have the context of the text.

        Args:
            inputs: Token ids (B, T) of the prompts.
            *arguments: Other arguments of `generate` of the base, such as its generation config.
            context: As for `forward`; None is the expected context.
            **options: Other arguments by name.
        """
        check_argument_names(options)
        prompts = (inputs, options.get("input_ids"), options.get("inputs_embeds"))
        adaptation = self.adapt(context, next((tensor for tensor in prompts if tensor is not None), None))
        self.base.generation_config = self.generation_config  # which may have been set on this model
        if isinstance(contexts := adaptation.contexts, Tensor):
            if adaptation.count == 1:
                adaptation = Adaptation(self.maps, self.maps.fold(self.maps.condition(contexts)))
            adaptation.is_generation = True
        with applied(adaptation), growing_caches(self.base):
            return self.base.generate(inputs, *arguments, **options)

    @property
    def base_model(self) -> "ContextLayers":
        """The layers of the base without the output layer, with which TRL computes losses."""
        return ContextLayers(self)

    def disable_adapter(self) -> AbstractContextManager[None]:
        """Return a block in which this thread computes as the unadapted base."""
        return applied(Adaptation(self.maps, is_disabled=True))

    def read_contexts(self, source: Any, *, unknown: str = "group") -> Context:
        """Read the context columns of a table, for training and evaluation.

        Args:
            source: A table of any supported type with all context columns; other columns are ignored.
            unknown: The policy for values that training never saw: "group", "expected" or "error".
        """
        return self._reader.read_table(source, unknown)

    def context_vectors(self, context: Any = None) -> Tensor:
        """Return the context vectors (B, K) of contexts, or (1, K) of one context; `context` is as for `forward`."""
        if isinstance(context, Tensor):
            size = 0 if self.encoder is None else self.context_config.context_size
            if context.dim() != 2 or context.shape[1] != size:
                raise UserError(f"context: expected vectors (texts, {size}), got a tensor {tuple(context.shape)}")
            return context if self.encoder is None else context.to(next(self.encoder.parameters()).dtype)
        if not isinstance(context, Context):
            # `torch.compile` does not compile what reads tables.
            read = torch.compiler.disable(self._reader.read_mappings)  # type: ignore[no-untyped-call]
            context = read({} if context is None else context)
        if self.encoder is None:
            return torch.zeros(len(context), 0, device=self.base.device)
        return cast(Tensor, self.encoder(context.to(self.base.device)))

    def adapt(self, context: Any, inputs: Tensor | None, *, needs_context: bool = False) -> Adaptation:
        """Return the adaptation of a pass over `inputs`, without shifts if the adapters are disabled."""
        self._check_adapters()
        outer = find_adaptation(self.maps)
        if outer is not None and outer.is_disabled:
            return outer
        if context is None and needs_context and self.encoder is not None:
            raise UserError(NO_CONTEXT)
        vectors = self.context_vectors(context)
        if inputs is not None and len(vectors) not in (1, len(inputs)):
            raise UserError(f"context: expected one, or one for each of {len(inputs):,} texts, got {len(vectors):,}")
        return Adaptation(self.maps, with_constant(vectors))

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Compute the activations of each layer again in the backward pass, which needs less memory.

        Args:
            activation_checkpointing_kwargs: Arguments of `torch.utils.checkpoint.checkpoint`.
            **options: Other arguments of this method of the base.

        Raises:
            UserError: `use_reentrant` is set, with which layers cannot read their context.
        """
        arguments = dict(activation_checkpointing_kwargs or {})
        if arguments.setdefault("use_reentrant", False):
            raise UserError("use_reentrant: expected False, with which layers can read their context, got True")
        arguments.setdefault("context_fn", checkpoint_contexts)
        self.base.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments, **options)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Call `activation_checkpointing_enable`, whose former name this is.

        Without this method, the call would reach the base, whose layers would be computed again without their context.
        """
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **options)

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """Return the number of trained values and the number of all values."""
        trained = sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)
        return trained, sum(parameter.numel() for parameter in self.parameters())

    def print_trainable_parameters(self) -> None:
        """Print the number of trained values, the number of all values and their ratio."""
        trained, total = self.get_nb_trainable_parameters()
        share = 100 * trained / total
        sys.stdout.write(f"trainable params: {trained:,} || all params: {total:,} || trainable%: {share:.4f}\n")

    def save_pretrained(
        self, folder: str | Path, *, state_dict: Mapping[str, Any] | None = None, is_main_process: bool = True
    ) -> None:
        """Write the trained tensors, the options and the schema into a folder; the base is not stored.

        Args:
            folder: The folder, which is created if it does not exist; the files of an earlier call are replaced.
            state_dict: The complete tensors, if several processes share them, as with FSDP.
            is_main_process: Whether this process writes the files.
        """
        if not is_main_process:
            return
        self._check_adapters()
        path = files.create_folder(folder)
        base = {"base_model": str(getattr(self.base, "name_or_path", "")), "model_type": self.base.config.model_type}
        files.write_json(path / SCHEMA_FILE, self.schema.to_dict())
        state = self.state_dict() if state_dict is None else state_dict
        tensors = tensors_to_save(self, state)
        files.save_tensors(path / WEIGHTS_FILE, tensors, {})
        options = {name: value for name, value in vars(self.context_config).items() if name != "schema"}
        files.write_versioned(path / CONFIG_FILE, {**base, **options}, FILE_FORMAT)

    @torch.no_grad()
    def save_lora(self, folder: str | Path, context: Any = None) -> None:
        """Write the change of one context as a LoRA of the base in the format of the library PEFT.

        Args:
            folder: The folder, which is created if it does not exist.
            context: One context, as for `forward`.

        Raises:
            UserError: A LoRA cannot store the change: the context scales outputs, or the base has been trained too.
        """
        shifts = self.maps.condition(self._single_context(context))
        adapters = {f"base.{name}" for name in self.maps.adapter_tensors()}
        if trained := sorted(name for name in self.state_dict() if name.startswith("base.") and name not in adapters):
            raise UserError(f"{trained[0]}: a LoRA cannot store trained weights of the base; use merge_and_unload")
        if any(shift.scale is not None for shift in shifts):
            raise UserError("adapt: a LoRA cannot store the adapter scale; use merge_and_unload")
        changes = list(map(low_rank_change, self.maps.projections, shifts))
        if problem := expert_problem(self.base, changes):
            raise UserError(f"target_modules: {problem}; use merge_and_unload, or train without these maps")
        write_lora(changes, files.create_folder(folder), base=str(getattr(self.base, "name_or_path", "")))

    def push_to_hub(
        self, repo_id: str, *, token: str | None = None, private: bool | None = None, **options: Any
    ) -> Any:
        """Upload the files of `save_pretrained` to a repository of the hub, which is created if it does not exist.

        Args:
            repo_id: The repository, such as `user/name`.
            token: A token of the hub; by default that of its command line.
            private: Whether a new repository is private; by default what its owner has set.
            **options: Other arguments of `HfApi.upload_folder`, such as `commit_message`.

        Returns:
            The result of `HfApi.upload_folder`, with the address of the commit.

        Raises:
            UserError: The hub refuses the repository or the files, or cannot be reached.
        """
        from huggingface_hub import HfApi

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            try:
                hub = HfApi(token=token)
                name = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
                return hub.upload_folder(repo_id=name, folder_path=folder, **options)
            except Exception as error:  # the library raises errors of many kinds
                raise UserError(f"{repo_id}: cannot be written ({first_line(error)})") from None

    @classmethod
    def from_pretrained(
        cls, model: Any, folder: str | Path, *, config: ContextConfig | None = None, **options: Any
    ) -> Self:
        """Add trained context adapters to their base.

        Args:
            model: The base: the same model of `transformers`, without adapters.
            folder: A folder of `save_pretrained`, a repository of the hub such as `user/name`, or a checkpoint of the
                `Trainer`.
            config: The options of the adapters, for a checkpoint of the `Trainer`, which has only tensors.
            **options: Arguments of `huggingface_hub.snapshot_download`, such as `revision` and `token`.

        A finding says if the base has another name than in training.

        Raises:
            UserError: A file is missing or damaged, or the base does not have the same maps.
        """
        check_base(model)
        path = Path(folder)
        if config is not None:
            return cls(model, config, saved=_read_checkpoint(path))
        if not path.exists() and "/" in str(folder) and HUB_NAME.fullmatch(str(folder)):
            path = _download(str(folder), options)
        elif path.exists() and (refused_names := [name for name, value in options.items() if value is not None]):
            raise UserError(f"{', '.join(refused_names)}: expected a repository of the hub, got the folder {path}")
        if (path / CHECKPOINT_FILE).exists() and not (path / CONFIG_FILE).exists():
            raise UserError(f"{path}: expected the argument config for a checkpoint of the Trainer, got none")
        content = files.read_versioned(path / CONFIG_FILE, FILE_FORMAT)
        if content.get("model_type") != model.config.model_type:
            raise UserError(
                f"{path}: expected a base of type {content.get('model_type')}, as in training, got "
                f"{model.config.model_type}"
            )
        report_other_base(str(content.get("base_model", "")), model, path)
        names = {field.name for field in fields(ContextConfig)}
        options = {name: value for name, value in content.items() if name in names}
        options["schema"] = ContextSchema.load(path / SCHEMA_FILE)
        try:
            config = ContextConfig(**options)
        except (TypeError, UserError) as error:
            raise UserError(f"{path / CONFIG_FILE}: {error}") from None
        tensors, _ = files.load_tensors(path / WEIGHTS_FILE)
        return cls(model, config, saved=SavedTensors(path, tensors))

    def unload(self) -> Any:
        """Remove the adapters, and return the plain model of `transformers` with its former weights.

        This object cannot be used again.
        """
        self._check_adapters()
        self.maps.restore()
        self._has_adapters = False
        return self.base

    @torch.no_grad()
    def merge_and_unload(self, context: Any = None) -> Any:
        """Multiply the change of one context into the weights, and return the plain model of `transformers`.

        This object cannot be used again. A map whose bias the context changes gets a bias. A finding says if the
        architecture has no place for such a bias, so that it would be lost in a file.
        """
        vector, former = self._single_context(context), bias_names(self.base)
        self.maps.restore(self.maps.condition(vector))
        self._has_adapters = False
        declare_changes(self.base, former)
        return self.base

    def _single_context(self, context: Any) -> Tensor:
        """Return the vector of one context with its constant (1, K + 1)."""
        self._check_adapters()
        vectors = with_constant(self.context_vectors(context))
        if len(vectors) != 1:
            raise UserError(f"context: expected one, got {len(vectors):,}")
        return vectors

    def _check_adapters(self) -> None:
        if not self._has_adapters:
            raise UserError("this model has lost its adapters; use the model that unload or merge_and_unload returned")


class ContextLayers:
    """The layers of a `ContextModel`, which compute hidden states in a context, as `base_model` of a base does.

    Its other attributes are those of the layers.
    """

    def __init__(self, model: ContextModel) -> None:
        self._model = model

    def __call__(self, input_ids: Tensor | None = None, *, context: Any = None, **options: Any) -> Any:
        """Call the layers with the weights of the context of each text; the arguments are those of `ContextModel`."""
        model = self._model
        if isinstance(model.get_output_embeddings(), Projection):
            raise UserError("target_modules: expected no output layer, because the trainer computes it unadapted")
        check_argument_names(options)
        inputs = options.get("inputs_embeds") if input_ids is None else input_ids
        is_training = torch.is_grad_enabled() and model.training
        with applied(model.adapt(context, inputs, needs_context=is_training)):
            return model.base.base_model(input_ids=input_ids, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.base.base_model, name)


def _read_checkpoint(folder: Path) -> SavedTensors:
    """Read the tensors of a checkpoint of the `Trainer`."""
    path = folder / CHECKPOINT_FILE
    try:
        return SavedTensors(folder, safetensors.torch.load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: expected the tensors of a checkpoint of the Trainer, got none ({error})") from None


def _download(repo_id: str, options: Mapping[str, Any]) -> Path:
    """Download the adapters in a repository of the hub, and return their folder."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, allow_patterns=[CONFIG_FILE, SCHEMA_FILE, WEIGHTS_FILE], **options))
    except Exception as error:  # the library raises errors of many kinds
        problem = f"expected a folder or a repository of the hub, got neither ({first_line(error)})"
        raise UserError(f"{repo_id}: {problem}") from None
