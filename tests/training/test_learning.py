"""Models trained on two dialects whose entropy is known: no model is better, and the FactorCell comes near.

The truth given the dialect is N_c nats. A model that does not know the dialect can at best weigh both by Bayes' rule,

    N = -log((exp -N_0 + exp -N_1) / 2),

so on many texts the truth is below this mixture, and every unadapted model is above it. See synthetic.py.
"""

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.runs.run import Run
from factorcell.training.trainer import train
from tests.synthetic import NAMES, dialects

MODELS = ("unadapted", "softmaxbias", "factorcell")


def make_config(model: str) -> Config:
    """Return the config of a model of the paper; the FactorCell is trained with the sampled softmax."""
    loss = {"samples": 30} if model == "factorcell" else {}
    return Config.of(
        **{
            "context": ("dialect",),
            "min_count": 1,
            "embedding_size": 12,
            "hidden_size": 24,
            "context_size": 4,
            "variable_size": 4,
            "rank": 6,
            "epochs": 3,
            "batch_tokens": 600,
            "learning_rate": 0.03,
            "evaluations": 1,
            **loss,
        }
    ).with_options(model=model)


@pytest.fixture(scope="module")
def perplexities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The perplexities on unseen texts of `MODELS`, of the `truth`, and of the `mixture` of both dialects."""
    chains, folder = dialects(), tmp_path_factory.mktemp("dialects")
    dev_rows = chains.sample(1500, seed=2)
    corpus = prepare(chains.sample(10_000, seed=1), make_config("factorcell"))
    dev = prepare(dev_rows, make_config("factorcell"), tokenizer=corpus.tokenizer, schema=corpus.schema)
    nats = np.stack([chains.nats(row["text"]) for row in dev_rows])
    true_nats = nats[np.arange(len(nats)), [NAMES.index(row["dialect"]) for row in dev_rows]]
    mixture = np.log(2) - np.logaddexp(-nats[:, 0], -nats[:, 1])
    result = {
        name: float(np.exp(part.sum() / dev.target_count))
        for name, part in (("truth", true_nats), ("mixture", mixture))
    }
    for name in MODELS:
        run = Run.create(folder / name, make_config(name), corpus.tokenizer, corpus.schema)
        result[name] = list(train(run, corpus, dev))[-1]["perplexity"]
    assert result["truth"] == pytest.approx(chains.perplexity(), rel=0.02)
    return result


def test_the_factorcell_reaches_the_known_entropy(perplexities: dict[str, float]) -> None:
    assert perplexities["factorcell"] < 1.03 * perplexities["truth"]


def test_no_model_has_a_lower_perplexity_than_the_truth(perplexities: dict[str, float]) -> None:
    assert min(perplexities[name] for name in MODELS) > 0.998 * perplexities["truth"]
    assert perplexities["unadapted"] > 0.998 * perplexities["mixture"]


def test_the_factorcell_beats_every_possible_unadapted_model(perplexities: dict[str, float]) -> None:
    assert perplexities["factorcell"] < 0.98 * perplexities["mixture"]


def test_a_factorcell_beats_a_softmax_bias_which_beats_an_unadapted_model(perplexities: dict[str, float]) -> None:
    assert perplexities["factorcell"] < 0.98 * perplexities["softmaxbias"]
    assert perplexities["softmaxbias"] < 0.99 * perplexities["unadapted"]
