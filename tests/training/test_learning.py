"""Models trained for seconds on two dialects whose entropy is known: what context must gain, and cannot.

The truth given the dialect is N_c nats. A model that is not told the dialect can at best weigh both by Bayes' rule,

    N = -log((exp -N_0 + exp -N_1) / 2),

so the truth is below this mixture, on many texts, and every unadapted model is above it. See synthetic.py.
"""

import numpy as np
import pytest

from factorcell.config import Config
from factorcell.data.cache import prepare
from factorcell.model.run import Run
from factorcell.training.loop import train
from tests.synthetic import NAMES, dialects

MODELS = ("unadapted", "softmaxbias", "factorcell", "sampled")


def config(name: str) -> Config:
    """One of the models of the paper; `sampled` is the FactorCell trained on samples of the softmax."""
    sampled = {"loss": "sampled", "samples": 30} if name == "sampled" else {}
    return Config.from_dict(
        {
            "data": {"context": ("dialect",), "min_count": 1},
            "model": {"embedding_size": 12, "hidden_size": 24, "context_size": 4, "variable_size": 4, "rank": 6},
            "training": {"epochs": 3, "batch_tokens": 600, "learning_rate": 0.03, "evaluations": 1, **sampled},
        }
    ).with_model("factorcell" if sampled else name)


@pytest.fixture(scope="module")
def perplexities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Perplexity on unseen texts of `MODELS`, of the `truth`, and of the `mixture` of both dialects."""
    chains, folder = dialects(), tmp_path_factory.mktemp("dialects")
    dev_rows = chains.sample(1500, seed=2)
    corpus = prepare(chains.sample(10_000, seed=1), config("factorcell").data)
    dev = prepare(dev_rows, config("factorcell").data, vocabulary=corpus.vocabulary, schema=corpus.schema)
    nats = np.stack([chains.nats(row["text"]) for row in dev_rows])
    own = nats[np.arange(len(nats)), [NAMES.index(row["dialect"]) for row in dev_rows]]
    mixture = np.log(2) - np.logaddexp(-nats[:, 0], -nats[:, 1])
    found = {name: float(np.exp(part.sum() / dev.targets)) for name, part in (("truth", own), ("mixture", mixture))}
    for name in MODELS:
        run = Run.create(folder / name, config(name), corpus.vocabulary, corpus.schema)
        found[name] = list(train(run, corpus, dev))[-1]["perplexity"]
    assert found["truth"] == pytest.approx(chains.perplexity(), rel=0.02)
    return found


@pytest.mark.parametrize("name", ["factorcell", "sampled"])
def test_the_factorcell_reaches_the_known_entropy(name: str, perplexities: dict[str, float]) -> None:
    """Within 3 % of the true perplexity, trained on either loss."""
    assert perplexities[name] < 1.03 * perplexities["truth"]


def test_nothing_is_better_than_the_truth(perplexities: dict[str, float]) -> None:
    """Given the dialect or not, on the same texts: what is below would leak targets, but for chance."""
    assert min(perplexities[name] for name in MODELS) > 0.998 * perplexities["truth"]
    assert perplexities["unadapted"] > 0.998 * perplexities["mixture"]


def test_context_gains_what_no_unadapted_model_can(perplexities: dict[str, float]) -> None:
    """Below the mixture is only a model that is told the dialect and has learned its moves."""
    assert perplexities["factorcell"] < 0.98 * perplexities["mixture"]


def test_more_adaptation_is_better(perplexities: dict[str, float]) -> None:
    """A bias of the softmax knows how often words are used; only an adapted cell knows what follows what."""
    assert perplexities["factorcell"] < 0.98 * perplexities["softmaxbias"]
    assert perplexities["softmaxbias"] < 0.99 * perplexities["unadapted"]
