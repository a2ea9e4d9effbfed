"""How large a model is, from its config alone: before it is made, and before a file of weights is taken for its own.

    bytes of a model = 4 P + filter        bytes of a step = 4 (7 P + tokens per batch * values per token)

P is the number of parameters. A step keeps the gradient and two moments of each, and writes three values of it into a
checkpoint. It is rather too much than too little, by up to a factor of three.

Shapes: V vocabulary, E embedding, H hidden, K context, R rank, D inputs of a layer with H, G gate columns.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError

from factorcell import assignments, files, memory
from factorcell.config import PREFIX, Config, ModelConfig, TrainingConfig, UserError
from factorcell.data.schema import ContextSchema
from factorcell.model.adapters import LayerSizes, Shapes, adapter, ranked, shifting
from factorcell.model.adaptive_softmax import cluster_widths, cutoffs
from factorcell.model.cells import kind
from factorcell.model.output_bias import TABLES, table_sizes

FLOAT = 4  # bytes
KEPT = 7  # values of each parameter in training
PER_UNIT = 4  # values that a step keeps of each gate, with their gradients


def shapes(config: ModelConfig, vocabulary: int, schema: ContextSchema) -> Shapes:
    """The shape of everything that a run keeps, by its name there, as `LanguageModel.kept`."""
    shifts = shifting(config) if schema.variables else ()
    encoded = bool(schema.variables and (shifts or config.output_bias))
    found: Shapes = {"embedding": (vocabulary, config.embedding_size)}
    if encoded:
        found |= _encoder(config, schema)
    if schema.variables and PREFIX in config.adapt:
        found |= _embeddings("prefix", config.embedding_size, schema)
        found |= _linear("prefix.linear", _inputs(schema), config.embedding_size)
    for layer in range(config.layers):
        found |= {f"cells.{layer}.{name}": shape for name, shape in _cell(config, layer, shifts).items()}
    found |= {f"output.{name}": shape for name, shape in _output(config, vocabulary, schema, encoded).items()}
    return found


def _cell(config: ModelConfig, layer: int, shifts: Sequence[str]) -> Shapes:
    step, inputs = kind(config.cell), config.hidden_size if layer else config.embedding_size
    size = LayerSizes(config.context_size, inputs, config.hidden_size, step.gates, config.rank)
    normed = (size.columns + size.hidden if step.memory and config.norm_memory else size.columns,)
    made = {name: adapter(name).shapes(size) for name in shifts}
    own = {f"adapters.{name}.{key}": tuple(shape) for name, parts in made.items() for key, shape in parts.items()}
    norm: Shapes = {"gain": normed, "shift": normed} if config.layer_norm else {}
    return {"matrix": (size.rows, size.columns), "bias": (size.columns,), **norm, **own}


def _encoder(config: ModelConfig, schema: ContextSchema) -> Shapes:
    """The embeddings of all variables, the network over numbers, and what joins them."""
    found, inputs = _embeddings("encoder", config.variable_size, schema), _inputs(schema)
    for layer in range(config.number_layers if inputs else 0):
        found |= _linear(f"encoder.network.{2 * layer}", inputs, config.number_size)
        inputs = config.number_size
    if config.context_layer == "none":
        return found
    return found | _linear("encoder.joint", sum(_sizes(config, schema)), config.context_size)


def _embeddings(of: str, size: int, schema: ContextSchema) -> Shapes:
    tables = {f"{of}.tables.{i}": (len(v.values), size) for i, v in enumerate(schema.categories)}
    texts = {f"{of}.texts.{i}.table": (len(v.values), size) for i, v in enumerate(schema.texts)}
    return {
        **tables,
        **texts,
        **{f"{of}.vectors.{i}.weight": (size, len(v.means)) for i, v in enumerate(schema.vectors)},
    }


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    """A linear layer; of no inputs there is none."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)} if inputs else {}


def _inputs(schema: ContextSchema) -> int:
    """Numbers and waves that all numeric variables make."""
    return sum(len(variable.means) if variable.period else 1 for variable in schema.numbers)


def _sizes(config: ModelConfig, schema: ContextSchema) -> list[int]:
    embedded = len(schema.categories) + len(schema.texts) + len(schema.vectors)
    width = config.number_size if config.number_layers else _inputs(schema)
    return [config.variable_size] * embedded + ([width] if schema.numbers else [])


def _output(config: ModelConfig, vocabulary: int, schema: ContextSchema, encoded: bool) -> Shapes:
    size, hidden = config.embedding_size, config.hidden_size
    names, rows, found = config.output_bias if encoded else (), vocabulary, {"projection": (hidden, size)}
    bias: Shapes = {"bias": (vocabulary,)}
    if config.softmax == "adaptive":
        starts = cutoffs(config.cutoffs, vocabulary)
        wide = sum(cluster_widths(size, config.shrink, len(starts)))
        bias = {"clusters": (len(starts), size), "narrow": (size, wide), "bias": (vocabulary + len(starts),)}
        rows = (starts[0] if starts else vocabulary) + len(starts) + wide
    for name in names:
        if name in TABLES:
            one = TABLES[name](1, config, schema, _sizes(config, schema)).get_parameter("weight")  # of one token
            found[f"adapters.{name}.weight"] = (rows, one.shape[1])
        elif schema.categories:
            buckets, bits = table_sizes(config)
            bias |= {"hashed.weight": (buckets, 1), "hashed.bits": (-(-bits // 8),)}
    return {**found, **bias}


def parameters(kept: Mapping[str, tuple[int, ...]]) -> int:
    """The number of learned values among what is `kept`."""
    return sum(math.prod(shape) for name, shape in kept.items() if not name.endswith(".bits"))


def check(config: ModelConfig, vocabulary: int, schema: ContextSchema, *, trained: bool = False) -> None:
    """`UserError` if a model, or if it is to be `trained` all that training keeps of it, does not fit into memory."""
    kept = shapes(config, vocabulary, schema)
    count = parameters(kept)
    filters = sum(math.prod(shape) for name, shape in kept.items() if name.endswith(".bits"))
    what = f"{'training ' if trained else ''}a model of {count:,} parameters"
    memory.check(FLOAT * count * (KEPT if trained else 1) + filters, what)


def check_step(config: Config, vocabulary: int, schema: ContextSchema, tokens: int, texts: int) -> None:
    """`UserError` if a training on so many `tokens` in so many `texts` does not fit into memory."""
    what = f"training with batches of {min(tokens, config.training.batch_tokens):,} tokens"
    memory.check(step_bytes(config, vocabulary, schema, tokens, texts), what)


def step_bytes(config: Config, vocabulary: int, schema: ContextSchema, tokens: int, texts: int) -> int:
    """About the bytes of a training on so many `tokens` in so many `texts`, or on batches of them."""
    model, training = config.model, config.training
    batch = min(tokens, training.batch_tokens + config.data.max_tokens)
    texts, tokens = -(-texts * batch // max(1, tokens)), batch
    gates = kind(model.cell).gates * model.hidden_size
    of_token = 4 * model.embedding_size + model.layers * PER_UNIT * (gates + model.hidden_size)
    of_text = model.layers * model.rank * (model.embedding_size + model.hidden_size + gates) * 2
    of_text *= ranked(model) and bool(schema.variables)
    drawn = training.samples * (texts if training.loss == "sampled_text" else 1) if training.loss != "full" else 0
    read = KEPT * parameters(shapes(model, vocabulary, schema))
    return FLOAT * (read + times_read(training, schema) * (tokens * of_token + texts * of_text) + 6 * drawn)


def times_read(training: TrainingConfig, schema: ContextSchema) -> int:
    """How often a step reads its texts: once, and with every other value that theirs are told apart from."""
    parsed = [assignments.parsed("tell_apart", text) for text in training.tell_apart]
    named = {name for name, weight in parsed if weight}
    asked = [one for one in schema.categories if "" in named or one.name in named]
    return 1 + sum(min(training.tell_values, len(one.values) - 2) for one in asked)


def beam_bytes(config: ModelConfig, vocabulary: int, contexts: int, width: int, across: int, tokens: int) -> int:
    """About the bytes of a beam: of each context so many beginnings of `tokens`, each grown `across` tokens."""
    of_state = 2 * config.layers * config.hidden_size
    of_conditions = config.layers * config.rank * (config.embedding_size + 4 * config.hidden_size)
    of_beginning = 4 * of_state + 4 * tokens + 8 * min(across, vocabulary) + of_conditions
    return FLOAT * contexts * width * of_beginning


def check_header(path: Path, expected: Shapes) -> None:
    """`UserError` unless the tensors in the file of weights `path` have the `expected` shapes; none of them is read."""
    if not path.is_file():
        return  # who reads it says so
    try:
        with files.open_tensors(path) as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path}: truncated or not a safetensors file ({error})") from None
    if found != expected:
        name = next(name for name in {**expected, **found} if found.get(name) != expected.get(name))
        has, wanted = (str(shape) if shape else "nothing" for shape in (found.get(name), expected.get(name)))
        raise UserError(
            f"{path}: does not belong to this config, schema and vocabulary (its {name} is {has}, they make {wanted})"
        )
