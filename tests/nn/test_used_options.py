"""Used options: a size is used if it changes the shape of a parameter that the nats of texts depend on."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from factorcell.config import PREFIX, Config
from factorcell.data.corpus import Corpus
from factorcell.nn.language_model import LanguageModel
from factorcell.runs.summary import unused_options
from factorcell.training.trainer import observe
from tests.small_runs import ROWS, SMALL_HASH, make_run

ADAPTATIONS = list(
    itertools.product(
        [(), ("concat",), ("concat", "factor"), ("scale",), (PREFIX,)],
        [(), ("low_rank",), ("low_rank_each",), ("one_hot",), ("hash",)],
    )
)


def read_shapes(config: Config, corpus: Corpus) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters with a gradient that is not zero, at random weights."""
    model = LanguageModel(config, len(corpus.tokenizer), corpus.schema, corpus.tokenizer.specials)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    observe(model, corpus)
    model(corpus.batch(np.arange(len(corpus)))).sum().backward()
    return {
        name: tuple(value.shape)
        for name, value in model.named_parameters()
        if value.grad is not None and value.grad.any()
    }


@pytest.mark.parametrize("context", [(), ("city",), ("lat:number",), ("city", "lat:number")])
def test_a_size_is_used_if_it_changes_a_parameter_with_a_gradient(context: tuple[str, ...], tmp_path: Path) -> None:
    corpus = make_run(tmp_path / "run", context).prepare(ROWS[:3])
    for adapt, output_bias in ADAPTATIONS:
        sizes = {"embedding_size": 5, "hidden_size": 6, **SMALL_HASH}
        config = Config.of(adapt=adapt, output_bias=output_bias, **sizes)
        used = {
            name
            for name in ("rank", "context_size", "variable_size")
            if read_shapes(config, corpus) != read_shapes(config.with_options(**{name: 7}), corpus)
        }
        assert unused_options(config, corpus.schema) & {"rank", "context_size", "variable_size"} == (
            {"rank", "context_size", "variable_size"} - used
        ), (adapt, output_bias)
