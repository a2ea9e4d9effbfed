"""Contexts in the types of other libraries, and in other number types, for models with context adapters."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import datasets
from factorcell import Number, UserError, Vector
from factorcell.config import Config
from factorcell.data.columns.schema import ContextSchema
from factorcell.hf import ContextCollator, ContextConfig, get_context_model, read_names
from factorcell.hf.contexts import ContextReader
from tests.nn.test_context_model import CONTEXTS, ROWS, SCHEMA, new_base, new_model


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))


def test_contexts_of_other_libraries_are_read_like_plain_values() -> None:
    model = new_model()
    frame = pandas.DataFrame(ROWS[:4])
    expected = model.context_vectors(CONTEXTS)
    for age in (torch.tensor(3.0), torch.tensor(3.0, dtype=torch.bfloat16, requires_grad=True)):
        torch.testing.assert_close(model.context_vectors([{"city": "Oslo", "age": age}]), expected[:1])
    torch.testing.assert_close(model.context_vectors(expected.double()), expected)
    for context in (CONTEXTS[0], frame.drop(columns="text").iloc[0], {"city": np.str_("Oslo"), "age": np.int64(3)}):
        torch.testing.assert_close(model.context_vectors(context), expected[:1])
    name = np.unique(["Oslo"])[0]
    torch.testing.assert_close(model.context_vectors({"city": name}), model.context_vectors({"city": "Oslo"}))


def test_collator_repeats_contexts_for_preferences_and_refuses_packed_texts() -> None:
    rows = [{"city": "Oslo", "age": 3.0}, {"city": "Rome", "age": 5.0}]
    batch = ContextCollator(lambda features: {"input_ids": torch.zeros(4, 3)}, SCHEMA)(rows)
    expected = ContextReader(SCHEMA).read_table(rows * 2)
    assert torch.equal(batch["context"].categories, expected.categories)
    with pytest.raises(UserError, match="rows of tokens for 2 contexts, got 1; do not pack"):
        ContextCollator(lambda features: {"input_ids": torch.zeros(1, 3)}, SCHEMA)(rows)
    with pytest.raises(UserError, match="rows of tokens for 2 contexts, got 3; do not pack"):
        ContextCollator(lambda features: {"input_ids": torch.zeros(3, 3)}, SCHEMA)(rows)


def test_a_class_column_of_a_data_set_has_names_and_numbers() -> None:
    features = datasets.Features(
        {"label": datasets.ClassLabel(names=["World", "Sports"]), "rating": datasets.Value("float64")}
    )
    data = datasets.Dataset.from_dict({"label": [0, 1, 1, -1], "rating": [4.7, 1.5, 1.5, 4.7]}, features=features)
    schema = ContextConfig(["label", "rating:category"], min_count=1).fit(data).schema
    assert [variable.values[1:] for variable in schema.categories] == [("Sports", "World"), ("1.5", "4.7")]
    schema = ContextSchema.from_dict(schema.to_dict())
    model = get_context_model(new_base("llama"), ContextConfig(schema=schema))
    ids = model.read_contexts(data).categories.tolist()
    assert ids == [[2, 2], [1, 1], [1, 1], [-1, 2]]
    sports = {"label": "Sports", "rating": 1.5}
    names = [{"label": "World", "rating": 4.7}, sports, sports, {"label": None, "rating": 4.7}]
    formats = [data.with_format(name) for name in ("torch", "numpy", "pandas")]
    for rows in (list(data), data[:], names, *(table[:] for table in formats), *map(list, formats[:2])):
        assert model.read_contexts(rows).categories.tolist() == ids
    for label in ("Sports", 1, torch.tensor(1), np.int64(1)):
        assert torch.equal(model.context_vectors({"label": label}), model.context_vectors({"label": "Sports"}))
    stream = data.to_iterable_dataset().map(lambda row: row, features=features)
    assert ContextConfig(["label", "rating:category"], min_count=1).fit(stream).schema == schema
    with_gap = pandas.DataFrame({"label": [0, 1, 1, None], "rating": data["rating"]})  # floats, for the missing label
    for rows in (stream, with_gap):
        assert model.read_contexts(rows).categories.tolist() == ids
    with pytest.raises(UserError, match="label 'sport' was never seen in training"):
        model.context_vectors({"label": "sport"})
    batch = ContextCollator(torch.utils.data.default_collate, schema)(list(data))
    assert batch["context"].categories.tolist() == ids


def test_a_context_of_a_vector_alone_is_one_context() -> None:
    rows = [{"place": [0.1, 0.2]}, {"place": [0.5, 0.1]}]
    model = get_context_model(new_base("llama"), ContextConfig([Vector("place")]).fit(rows))
    vectors = model.context_vectors(rows)
    torch.testing.assert_close(model.context_vectors(rows[0]), vectors[:1])
    torch.testing.assert_close(model.context_vectors({"place": [row["place"] for row in rows]}), vectors)


def test_model_without_context_columns_reads_any_table() -> None:
    config = ContextConfig().fit(ROWS)
    assert config == ContextConfig()
    model = get_context_model(new_base("llama"), config)
    assert len(model.read_contexts(ROWS)) == len(ROWS)


def test_names_are_those_of_the_schema() -> None:
    """A column with missing numbers has floats, a class column has numbers, and rare values have no name."""
    features = datasets.Features({"label": datasets.ClassLabel(names=["World", "Sports"])})
    data = datasets.Dataset.from_dict({"label": [0, 1, 1]}, features=features)
    schema = ContextConfig(["label"], min_count=1).fit(data).schema
    assert read_names(data, schema) == ["label: World\n", "label: Sports\n", "label: Sports\n"]
    assert read_names({"label": data["label"]}, schema) == read_names(data, schema)
    frame = pandas.DataFrame({"stars": [5, 1, None, 5], "city": ["Oslo", "Rome", "Oslo", None], "age": [1.5, 2, 3, 4]})
    schema = ContextConfig(["stars:category", "city", "age:number"], min_count=2).fit(frame).schema
    names = ["stars: 5\ncity: Oslo\n", "stars:\ncity:\n", "stars:\ncity: Oslo\n", "stars: 5\ncity:\n"]
    expected = [name + f"age: {age}\n" for name, age in zip(names, ("1.5", "2", "3", "4"), strict=True)]
    assert read_names(frame, schema) == expected
    assert read_names([{"stars": 5, "city": "Bern", "age": None}], schema) == ["stars: 5\ncity:\nage:\n"]
    assert read_names(ROWS[:2], ContextSchema()) == ["", ""]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_model_in_two_bytes_reads_the_same_numbers(dtype: torch.dtype, tokens: Tensor) -> None:
    """In bfloat16, the means 2015 and 2016 of years are the same number."""
    rows = [{"year": year, "place": [year, 0.5]} for year in (2015.0, 2014.0, 2016.0)]
    config = ContextConfig([Number("year"), "place:vector"])
    assert config == ContextConfig(["year:number", Vector("place")])
    model = get_context_model(new_base("llama"), config.fit(rows))
    expected = model.context_vectors(rows)
    model.to(dtype)
    model(tokens[:3], context=rows)
    torch.testing.assert_close(model.context_vectors(rows).float(), expected, atol=0.02, rtol=0.02)


def test_collator_adds_the_contexts_of_the_features() -> None:
    model = new_model()
    features = [{"input_ids": [5, 6], "labels": [5, 6], **row} for row in ROWS[:3]]
    batch = ContextCollator(transformers.default_data_collator, SCHEMA)(features)
    assert set(batch) == {"input_ids", "labels", "context"}
    assert torch.equal(model.context_vectors(batch["context"]), model.context_vectors(CONTEXTS[:3]))
    notes = [{**feature, "note": note} for feature, note in zip(features, (None, "late", None), strict=True)]
    assert set(ContextCollator(transformers.default_data_collator, SCHEMA)(notes)) == set(batch)
    with pytest.raises(UserError, match=r"column city, got input_ids, age; .*set remove_unused_columns=False"):
        ContextCollator(transformers.default_data_collator, SCHEMA)([{"input_ids": [5], "age": 3.0}])


ALL_KINDS = ["city", "age:number", "at:hour", "angle:cyclic=360", "place:vector", "about:text", "past:text"]
ROWS_OF_ALL_KINDS: list[dict[str, Any]] = [
    {
        "city": city,
        "age": number,
        "at": f"2024-05-0{number} 0{number}:00",
        "angle": 40.0 * number,
        "place": [number, 1.0],
        "about": "sea sun",
        "past": "sea sun " * number,
    }
    for number, city in enumerate(("Oslo", "Rome", "Oslo", "Bern"), 1)
] * 3
SCHEMA_OF_ALL_KINDS = ContextConfig(ALL_KINDS, min_count=1).fit(ROWS_OF_ALL_KINDS).schema
FORMS: dict[str, Any] = {
    "a mapping": ROWS_OF_ALL_KINDS[0],
    "mappings": ROWS_OF_ALL_KINDS[:2],
    "a mapping of lists": {name: [row[name] for row in ROWS_OF_ALL_KINDS[:2]] for name in ROWS_OF_ALL_KINDS[0]},
    "a data frame": pandas.DataFrame(ROWS_OF_ALL_KINDS[:2]),
    "some columns": [{"city": "Rome"}, {"past": "sea"}],
    "missing values": [dict.fromkeys(ROWS_OF_ALL_KINDS[0]), ROWS_OF_ALL_KINDS[0]],
    "no values": {},
    "unknown words": [{"about": "sea wind", "past": ""}, {"about": ""}],
}


# With a complete mask, `transformers` does not read tensors either.
PASS: dict[str, Any] = {"attention_mask": torch.zeros(2, 1, 7, 7), "use_cache": False}


class WithoutWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations whose results Python must read from the device, so that it would wait for the device."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "item"), name
        assert name != "repeat_interleave" or (options or {}).get("output_size") is not None
        return function(*arguments, **(options or {}))


def model_of_all_kinds(device: str = "cpu") -> Any:
    with torch.device(device):
        base = new_base("llama")
    return get_context_model(base, ContextConfig(rank=2, schema=SCHEMA_OF_ALL_KINDS))


@pytest.mark.parametrize("form", list(FORMS))
def test_contexts_of_all_forms_are_read_without_waiting_for_the_device(form: str, tokens: Tensor) -> None:
    model = model_of_all_kinds()
    vectors = model.context_vectors(FORMS[form])
    expected = model(tokens[:2], context=vectors, **PASS).logits
    with WithoutWaiting():  # type: ignore[no-untyped-call]
        logits = model(tokens[:2], context=FORMS[form], **PASS).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", list(FORMS))
def test_contexts_of_all_forms_are_read_on_the_meta_device(form: str, tokens: Tensor) -> None:
    options = {**PASS, "attention_mask": PASS["attention_mask"].to("meta")}
    logits = model_of_all_kinds("meta")(tokens[:2].to("meta"), context=FORMS[form], **options).logits
    assert (logits.device.type, logits.shape) == ("meta", (2, 7, 30))


def test_a_pass_creates_no_config(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model()
    monkeypatch.setattr(Config, "__post_init__", lambda self: pytest.fail("a config was created"))
    for context in (CONTEXTS, CONTEXTS[0], {}, pandas.DataFrame(CONTEXTS)):
        model(tokens, context=context)
    model.read_contexts(ROWS[:4])


def test_each_form_of_a_context_gives_the_vectors_of_its_rows() -> None:
    """Rows with and without missing values, read together or alone, have the same vectors."""
    model = model_of_all_kinds()
    rows = [*FORMS["mappings"], *FORMS["some columns"], *FORMS["missing values"], *FORMS["unknown words"], {}]
    together = model.context_vectors(rows)
    for row, vector in zip(rows, together, strict=True):
        torch.testing.assert_close(model.context_vectors(row)[0], vector)
    for name in ("a mapping of lists", "a data frame"):
        torch.testing.assert_close(model.context_vectors(FORMS[name]), together[:2])
    torch.testing.assert_close(model.context_vectors({}), together[-1:])


def test_a_schema_has_no_prompts() -> None:
    with pytest.raises(UserError, match="about: expected no prompt; put its text into the input tokens"):
        ContextConfig(["city", "about:prompt"]).fit(ROWS_OF_ALL_KINDS)
