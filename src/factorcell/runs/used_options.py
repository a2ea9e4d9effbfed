"""Which options of a config a model uses.

A config has a value for every option, but a model may not use it: an unadapted model has no rank, for example.
"""

from collections.abc import Iterable

from factorcell.adapters.adapters import find_adapter, weight_adapters
from factorcell.config import INPUT_ADAPTERS, Config, HuggingFaceOptions
from factorcell.data.columns.schema import ContextSchema


def used_options(names: Iterable[str], config: Config, schema: ContextSchema) -> list[str]:
    """Return those of the options `names` that a model with this config and these context variables uses."""
    unused = unused_options(config, schema)
    return [name for name in names if name not in unused]


def unused_options(config: Config, schema: ContextSchema) -> set[str]:
    """Return the options that a model with this config and these variables does not use."""
    model, adapters = config.model, weight_adapters(config.model)
    # Biases of the kinds one_hot, sparse and hash read values, those of low_rank_each the embeddings of variables.
    embedded = schema.embedded.variables
    has_context = bool(embedded)
    has_vector = has_context and bool(adapters or "low_rank" in model.output_bias)
    has_embedded_variables = len(schema.numbers) < len(embedded)  # numbers have no embeddings of their own
    is_used = {
        "adapt": has_context,
        "output_bias": has_context,
        "rank": has_vector and any(find_adapter(name).needs_rank for name in adapters),
        "context_size": has_vector,
        "variable_size": has_embedded_variables and (has_vector or "low_rank_each" in model.output_bias),
        "dropout_context": bool(schema.categories)
        and bool(adapters or model.output_bias or {*INPUT_ADAPTERS} & {*model.adapt}),
        "samples": config.training.samples > 0,
    }
    unused = {name for name, value in is_used.items() if not value}
    backbone, of_frozen_bases = config.backbone, {"shared_rank"}
    if not isinstance(backbone, HuggingFaceOptions):
        return unused
    unused.add("embedding_size")
    if not backbone.is_pretrained:
        return unused | {"train_base"} | of_frozen_bases
    return unused | {"layers", "hidden_size"} | (of_frozen_bases if backbone.train_base else set())
