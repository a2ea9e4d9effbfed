"""What experiments keep of models in words and maps, and the tables that are made of it."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import hotels
import samples
from tests.small import make_letters, make_run, nats_of


def test_sentences_are_of_their_contexts_and_not_too_short(tmp_path: Path) -> None:
    """One for each context, in order, of six words at least; a value that nobody knows is a rare one."""
    run = make_run(tmp_path / "run", ("city", "stars"))
    contexts = [{"city": "Oslo", "stars": "5"}, {"city": "Nowhere", "stars": "1"}]
    rows = samples.sentences(run, contexts).row["sentences"]
    assert [row["context"] for row in rows] == contexts
    assert all(len(row["text"].split()) >= samples.BEAM.min_tokens for row in rows)


def test_ratios_add_up_to_the_difference_of_both_readings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"), adapt=("factor",))
    readings = [{"text": "the sea is cold", "city": "Oslo", "stars": stars} for stars in "51"]
    best, worst = ({key: reading[key] for key in ("city", "stars")} for reading in readings)
    found = samples.ratios(run, "the sea is cold", best, worst)["ratios"]
    nats = np.array([nats_of(run, reading) for reading in readings])
    assert [word for word, _ in found[:4]] == ["the", "sea", "is", "cold"]
    assert [value for _, value in found] == pytest.approx((nats[1] - nats[0]).tolist(), abs=1e-5)


def test_boosted_words_are_those_of_positive_bias(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"), output_bias=("low_rank",))
    (row,) = samples.boosted(run, [{"city": "Oslo", "stars": "5"}])["boosted"]
    assert row["context"] == {"city": "Oslo", "stars": "5"}
    assert 0 < len(row["words"]) <= samples.BOOSTED


def test_fillers_of_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the most probable text that ends with the template, for each value, the highest first, by trying all.

    Those of one and two tokens are tried, so the search is for these. What is not to be made says why.
    """
    run = make_run(tmp_path / "run", ("stars",), adapt=("factor",))
    assert (samples.FILLED.max_tokens, samples.FILLED.whole) == (4, True)
    monkeypatch.setattr(samples, "FILLED", replace(samples.FILLED, max_tokens=2))
    words = run.vocabulary.tokens[3:]
    tried = [*words, *(" ".join(pair) for pair in itertools.product(words, repeat=2))]
    templates = ["the ____ and sand", "cold ____"]
    found = samples.fillers(run, templates, "stars")["fillers"]
    for template, own in zip(templates, found, strict=True):
        assert list(own) == ["5", "1"]
        for stars, filler in own.items():
            rows = [{"text": template.replace("____", one), "stars": stars} for one in tried]
            assert filler == tried[int(np.argmin([row["nats"] for row in run.score(rows)]))]
    told = samples.tried("fillers", lambda: samples.fillers(run, ["the moon ____"], "stars"))
    assert "'moon' is not in the vocabulary" in told["fillers"]["none"]


def test_a_unit_that_indicates_a_language() -> None:
    """Of texts that differ in their letters; the unit of the value that is asked for is followed, letter by letter."""
    run = make_letters(("aab", "bcc"), data={"context": ()}, adapt=(), output_bias=())
    table = [{"text": text, "language": name} for name, text in (("x", "aab"), ("y", "bcc")) for _ in range(12)]
    row = samples.indicated(run, table, "language", "y", ["aabcc"]).row
    assert {one["value"]: one["auc"] for one in row["indicators"]} == {"x": 1.0, "y": 1.0}
    assert [token["token"] for token in row["along"][0]["tokens"]] == list("aabcc")
    unit = next(one["hidden_unit"] for one in row["indicators"] if one["value"] == "y")
    assert row["along"][0]["hidden_unit"] == unit
    assert (row["few_examples"]["examples"], row["few_examples"]["accuracy"]) == (6, 1.0)


@pytest.mark.parametrize(
    ("hotel", "name"),
    [
        ("Super 8 Denver", "economy"),
        ("Comfort Inn-Downtown", "midscale"),
        ("Fairfield Inn by Marriott Boise", "midscale"),
        ("Residence Inn", "upscale"),
        ("Rose Cottage", None),
    ],
)
def test_classes_of_hotels(hotel: str, name: str | None) -> None:
    """By the longest chain in a name, whatever its case and hyphens."""
    assert hotels.class_of(hotel) == name


def test_regions_and_classes_of_texts(tmp_path: Path) -> None:
    """A city without a state has no region; texts of hotels of no chain are no texts of classes."""
    rows = [
        {"text": "a", "hotel": "Super 8", "city": "Boise, ID"},
        {"text": "b", "hotel": "Rose Cottage", "city": "Oslo, Norway"},
        {"text": "c", "hotel": "Hyatt", "city": "Reno, NV"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    told = hotels.described(tmp_path / "t.parquet")
    assert [row["region"] for row in told] == ["ID", None, "NV"]
    assert [row["class"] for row in told] == ["economy", None, "upscale"]
    kept = hotels.with_classes(tmp_path / "t.parquet").to_pylist()
    assert [(row["text"], row["class"]) for row in kept] == [("a", "economy"), ("c", "upscale")]
    assert set(hotels.chains().values()) == set(hotels.CLASSES)
