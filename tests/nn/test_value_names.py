"""Tests that a model reads the names of category values as text before each text."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factorcell.completion.completer import Completer
from factorcell.completion.search import PlainEngine
from factorcell.config import CELLS, Config
from factorcell.data.corpus import Batch
from factorcell.errors import UserError
from factorcell.runs.run import Run
from factorcell.runs.summary import model_facts, render_card
from factorcell.training.fit import train_run
from tests.kernels import compiled
from tests.small_runs import as_any, gradient_of_sampled_loss, make_run, step_nats

CITIES, STARS = ("Oslo", "Nice", None, "Rome"), ("5", None, "1")
TEXTS = ("city of stars", "", "Nice Oslo", "5 stars in Oslo", "Rome")
ADAPTATIONS: list[dict[str, Any]] = [
    {"adapt": ("names",), "output_bias": ()},
    {"adapt": ("names", "factor", "concat"), "output_bias": ("low_rank", "hash")},
    {"adapt": ("prefix", "names"), "output_bias": ()},
    {"adapt": ("names",), "output_bias": (), "context": ("city", "stars", "title:prompt")},
    {"adapt": ("names", "factor"), "output_bias": (), "context": ("lat:number", "city", "lon:longitude", "stars")},
    {"adapt": ("names",), "output_bias": (), "context": ("lat:number", "lon:longitude")},
]
PLACES = ((59.9139, 10.75), (None, 286.01), (-3, None), (12_345.6, -74.0), (-0.0, 180))
PLACE_NAMES = ((" 59.91", " 10.75"), ("", " -73.99"), (" -3", ""), (" 12350", " -74"), (" 0", " 180"))


def make_rows() -> list[dict[str, Any]]:
    """Return rows in which Rome is rare."""
    cities, stars = itertools.cycle(CITIES[:3]), itertools.cycle(STARS)
    rows = [{"text": text, "city": next(cities), "stars": next(stars), "title": "sea", "user": "u"} for text in TEXTS]
    rows = [*rows, *rows, {"text": "Rome", "city": "Rome", "stars": "5", "title": "", "user": "v"}]
    places = itertools.cycle(enumerate(PLACES))
    return [
        {**row, "place": place, "lat": lat, "lon": lon} for row, (place, (lat, lon)) in zip(rows, places, strict=False)
    ]


def make(folder: Path, **options: Any) -> Run:
    """Create a run of characters in double precision."""
    defaults = {"context": ("city", "stars"), "tokenizer": "char", "adapt": ("names",), "min_context_count": 2}
    run = make_run(folder, rows=make_rows(), **{**defaults, **options})
    run.model.double()
    return run


def batch_of(run: Run, rows: list[dict[str, Any]]) -> Batch:
    return run.prepare(rows).batch(np.arange(len(rows)))


def names_of(run: Run, row: dict[str, Any]) -> str:
    """Return the names of a row as the documentation defines them: those of categories, then those of numbers."""
    values = {"city": None if row["city"] == "Rome" else row["city"], "stars": row["stars"]}
    names = {column: "" if value is None else f" {value}" for column, value in values.items()}
    names |= dict(zip(("lat", "lon"), PLACE_NAMES[row["place"]], strict=True))
    return "".join(f"{column}:{name}\n" for column, name in names.items() if column in run.schema.columns())


def nats_after_names(run: Run, row: dict[str, Any]) -> list[float]:
    """Compute the nats of the targets of a text, with the names and the prompt as the beginning of the same text."""
    specials, encode = run.tokenizer.specials, run.tokenizer.encode
    prompts = [names_of(run, row), *([row["title"]] if run.schema.prompts else [])]
    ids = [token for prompt in prompts if prompt for token in (specials.start, *encode(prompt))]
    names, run.model.names = run.model.names, None
    conditioning = run.model.condition(batch_of(run, [{**row, "title": ""}]).context)
    run.model.names = names
    return step_nats(run, [*ids, specials.start, *encode(row["text"]), specials.end], conditioning)[len(ids) :]


@pytest.mark.parametrize("options", [*ADAPTATIONS, *({"cell": cell} for cell in CELLS)])
def test_names_equal_the_beginning_of_a_long_text_whose_targets_are_ignored(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = make(tmp_path / "run", **options)
    nats = run.model(batch_of(run, make_rows()))
    for row, text_nats in zip(make_rows(), nats.tolist(), strict=True):
        expected = nats_after_names(run, row)
        assert text_nats[: len(expected)] == pytest.approx(expected)
        assert not any(text_nats[len(expected) :])


def test_unknown_missing_and_rare_values_have_an_empty_name(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    assert run.model.names is not None

    def read(*contexts: dict[str, Any], unknown: str = "group") -> list[list[int]]:
        corpus = run.read([""] * len(contexts), list(contexts), unknown=unknown)
        lists = run.model.names(corpus.context(np.arange(len(contexts)))) if run.model.names else None
        assert lists is not None
        return [lists[torch.tensor([row])].ids.tolist() for row in range(len(contexts))]

    start, encode = run.tokenizer.specials.start, run.tokenizer.encode
    nothing, rare, unseen, both = read({}, {"city": "Rome"}, {"city": "Bonn"}, {"stars": "1", "city": "Nice"})
    assert nothing == rare == unseen == [start, *encode("city:\nstars:\n")]
    assert both == [start, *encode("city: Nice\nstars: 1\n")]
    assert read({"city": "Oslo"}, {"stars": "5"}) == [
        [start, *encode("city: Oslo\nstars:\n")],
        [start, *encode("city:\nstars: 5\n")],
    ]
    assert run.model.names.max_length == len(both)
    example = r'names read before each text, such as "city: (Oslo|Nice)\\nstars: 5\\n"; rare and'  # equal counts
    assert re.match(example, run.model.names.describe())
    assert "names read before each text" in render_card(run)


def test_a_name_has_at_most_max_prompt_tokens_with_its_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 7)
    run = make(tmp_path / "run", max_tokens=14)
    context = run.read([""], [{"city": "Oslo"}]).context(np.array([0]))
    assert run.model.names is not None
    expected = [run.tokenizer.specials.start, *run.tokenizer.encode("city: Ostars:\n")]
    assert run.model.names(context).ids.tolist() == expected


def test_names_of_users_are_not_read(tmp_path: Path) -> None:
    columns = {"context": ("city",), "user": "user", "min_user_count": 1}
    run = make(tmp_path / "run", **columns)
    context = run.read([""], [{"city": "Oslo", "user": "u"}]).context(np.array([0]))
    assert run.model.names is not None
    assert run.model.names(context).ids[1:].tolist() == run.tokenizer.encode("city: Oslo\n")
    with pytest.raises(
        UserError, match=r"adapt names: expected a category or a number as context, apart from users, got user \("
    ):
        make(tmp_path / "users", **{**columns, "context": ()})
    with pytest.raises(UserError, match="adapt names: each value of city has fewer than 100 texts; lower min_context_"):
        make(tmp_path / "rare", context=("city",), min_context_count=100)


def test_a_run_without_context_columns_reads_no_names(tmp_path: Path) -> None:
    run = make(tmp_path / "run", context=())
    assert run.model.names is None
    assert not run.model.is_adapted


def test_names_alone_make_an_adapted_run(tmp_path: Path) -> None:
    run = make(tmp_path / "run", output_bias=())
    assert run.model.is_adapted
    assert run.model.encoder is None
    assert dict(model_facts(run))["model"].startswith("names,")


@pytest.mark.parametrize("options", ADAPTATIONS[:3])
def test_classification_reads_the_name_of_each_candidate(options: dict[str, Any], tmp_path: Path) -> None:
    run, rows = make(tmp_path / "run", **options), make_rows()
    run.model.float()
    classification = run.predict(rows, "city", priors="uniform")
    assert {"Oslo", "Nice"} <= {*classification.names}
    log_posteriors = [classification.log_posterior[:, classification.names.index(name)] for name in ("Oslo", "Nice")]
    nats = [np.array([sum(nats_after_names(run, {**row, "city": name})) for row in rows]) for name in ("Oslo", "Nice")]
    first, second = log_posteriors
    assert first - second == pytest.approx(nats[1] - nats[0], abs=1e-4)
    assert np.abs(first - second).max() > 0.001


@compiled
def test_completions_after_names_equal_those_of_the_search_in_pytorch(tmp_path: Path) -> None:
    run = make(tmp_path / "run", adapt=("names", "factor"), output_bias=())
    run.model.float()
    completer = Completer(run)
    assert not isinstance(completer.engine, PlainEngine)
    actual = completer.complete("s", context={"city": "Oslo"}, k=20)
    completer.engine = as_any(completer.plain_engine)
    expected = completer.complete("s", context={"city": "Oslo"}, k=20)
    assert [suggestion.text for suggestion in actual] == [suggestion.text for suggestion in expected]
    scores = [suggestion.log_probability for suggestion in actual]
    assert scores == pytest.approx([suggestion.log_probability for suggestion in expected], rel=1e-5)


def test_generated_texts_are_scored_with_the_same_names(tmp_path: Path) -> None:
    run = make(tmp_path / "run", output_bias=())
    run.model.float()
    rows = [row for row in run.generate([{"city": "Oslo", "stars": "5"}], number=5) if row["ended"]]
    assert rows
    for row in rows:
        (scored,) = run.score_rows([row["text"]], context={"city": "Oslo", "stars": "5"})
        assert scored["nats"] == pytest.approx(-row["log_probability"], rel=1e-5)


def test_a_sampled_loss_reads_names_from_the_same_rows_as_texts(tmp_path: Path) -> None:
    run = make(tmp_path / "run", adapt=("names", "factor"))
    batch = batch_of(run, [{**row, "text": "5"} for row in make_rows()])
    (letter,) = run.tokenizer.encode("l")  # occurs only in the name Oslo
    assert gradient_of_sampled_loss(run, batch)[letter].any()


def test_training_learns_to_read_names(tmp_path: Path) -> None:
    rows = [{"text": f"in {city}", "city": city} for city in ("Oslo", "Nice", "Rome")] * 40
    options: dict[str, Any] = {"adapt": ("names",), "output_bias": (), "min_context_count": 1, "cell": "gru"}
    config = Config.of(context=("city",), tokenizer="char", epochs=12, batch_tokens=200, learning_rate=0.02, **options)
    train_run(rows, rows[:6], config, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert not any(name.startswith("names") for name in run.model.saved_tensors())
    for city, other in itertools.permutations(("Oslo", "Nice", "Rome"), 2):
        nats, other_nats = (run.score([f"in {city}"], context={"city": name})[0] for name in (city, other))
        assert nats + 1 < other_nats


@pytest.mark.parametrize("kind", ["prompt", "text"])
def test_a_column_that_the_model_also_reads_as_text_cannot_be_classified(kind: str, tmp_path: Path) -> None:
    run = make(
        tmp_path / "run", context=("city:category", f"city:{kind}", "stars"), adapt=("factor",), min_context_count=1
    )
    with pytest.raises(UserError, match=f"run also reads the column city as {kind}, which would reveal the answer"):
        run.predict(make_rows(), "city.category")
    assert run.predict(make_rows(), "stars").names


def test_a_column_that_the_model_also_reads_as_a_number_cannot_be_classified(tmp_path: Path) -> None:
    run = make(tmp_path / "run", context=("stars:category", "stars:number"), adapt=("factor",), min_context_count=1)
    with pytest.raises(UserError, match=r"also reads the column stars as number, .* train without the kind number"):
        run.predict(make_rows(), "stars.category")
