"""The flat interface of `fit`: its options, wrong names, and equality with a training from a `Config`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import factorcell
from factorcell import Category, Cyclic, Number, Run, UserError, fit
from factorcell.config import (
    OPTION_KINDS,
    Config,
    Options,
    TrainingConfig,
    TrainingOptions,
    option_fields,
    option_types,
    options_by_section,
    section_types,
)
from factorcell.options.columns import Column
from tests.small_runs import ROWS

SIZES: dict[str, Any] = {"min_count": 1, "min_context_count": 1, "embedding_size": 4, "hidden_size": 4, "rank": 1}
STEPS: dict[str, Any] = {"steps": 3, "batch_tokens": 40, "threads": 1}


def hints_of(cls: Any) -> dict[str, Any]:
    """Return the annotations in `Options` of the options of a section, by name."""
    types = option_types(cls)
    hints: dict[str, Any] = {field.name: types[field.name] for field in option_fields(cls) if field.name != "kind"}
    return {name: Sequence[str] if hint is tuple else hint for name, hint in hints.items()}


def test_the_types_of_options_are_those_of_the_fields() -> None:
    classes = [cls for section, cls in section_types().items() if section not in OPTION_KINDS]
    classes += [cls for kinds in OPTION_KINDS.values() for cls in kinds.values()]
    expected: dict[str, Any] = {"config": Any, "model": str, **dict.fromkeys(OPTION_KINDS, str)}
    for cls in classes:
        for name, hint in hints_of(cls).items():
            assert expected.setdefault(name, hint) == hint
    assert get_type_hints(TrainingOptions) == hints_of(TrainingConfig)
    assert get_type_hints(Options) == {**expected, "context": Sequence[str | Column]}


def weights(run: Run) -> list[Any]:
    return [parameter.tolist() for parameter in run.model.parameters()]


def test_options_train_the_same_model_as_a_config(tmp_path: Path) -> None:
    columns: list[str | Column] = ["city", Category("stars"), Number("lat"), Cyclic("lon", 360)]
    run = fit(ROWS, dev=ROWS[:4], out=tmp_path / "flat", context=columns, tokenizer="char", **SIZES, **STEPS)
    assert run.config.data.context == ("city", "stars:category", "lat:number", "lon:cyclic=360")
    assert run.config.tokenizer.kind == "char"
    assert run.config.training.steps == 3
    path = tmp_path / "recipe.toml"
    path.write_text(run.config.to_toml(), encoding="utf-8")
    for config in (run.config, path, run.folder / "config.json"):
        again = fit(ROWS, dev=ROWS[:4], out=tmp_path / f"{len(list(tmp_path.iterdir()))}", config=config)
        assert again.config == run.config
        assert weights(again) == weights(run)
    unadapted = fit(ROWS, dev=ROWS[:4], out=tmp_path / "unadapted", config=path, model="unadapted", seed=1)
    assert unadapted.config == run.config.with_options(model="unadapted").with_options(seed=1)
    assert run.score(ROWS).shape == (len(ROWS),)
    np.testing.assert_array_equal(run.score(ROWS), Run.open(run.folder).score(ROWS))
    frame = run.score_rows(ROWS).to_pandas()
    assert frame["nats"].tolist() == run.score(ROWS).tolist()
    classification = run.predict(ROWS, "city", priors="uniform")
    assert classification.labels == [row["predicted"] for row in classification.rows()]
    assert classification.accuracy == classification.metrics()["accuracy"]
    assert np.isnan(run.predict(["the sea"], "city").accuracy)


def test_options_of_a_kind_follow_it() -> None:
    options = options_by_section({"architecture": "llama", "layers": 2, "lowercase": True, "adapt": ["none"]})
    assert options["backbone"] == {"kind": "huggingface", "architecture": "llama", "layers": 2}
    assert options["tokenizer"] == {"lowercase": True}
    assert Config.from_dict(options).model.adapt == ()
    config = Config.of(tokenizer="bpe", min_count=3, rank=2)
    assert options_by_section({"config": config, "tokenizer": "char"})["tokenizer"] == {"kind": "char"}
    assert options_by_section({"config": config, "rank": 4})["tokenizer"] == config.to_dict()["tokenizer"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rnk": 4}, "unknown option 'rnk' (did you mean 'rank'?)"),
        ({"minuts": 4}, "unknown option 'minuts' (did you mean 'minutes'?)"),
        ({"tokeniser": "char"}, "unknown option 'tokeniser' (did you mean 'tokenizer'?)"),
        ({"shared_rank": 4}, "unknown option 'shared_rank'"),
        ({"kind": "char"}, "unknown option 'kind'"),
        ({"rank": "4"}, "rank is '4'; it must be of type int"),
        ({"model": "factorcel"}, "unknown model 'factorcel' (did you mean 'factorcell'?)"),
        ({"tokenizer": "chars"}, "unknown tokenizer 'chars'"),
        ({"base": "x", "backbone": "recurrent"}, "base requires backbone huggingface, got recurrent"),
        ({"minutes": 0}, "minutes is 0; it must be a "),
        ({"preset": "fast"}, "unknown preset 'fast'"),
        ({"context": [Cyclic("lat", 0)]}, "context column 'lat:cyclic=0': expected a period above 0"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_nearest(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        fit(ROWS, out=tmp_path / "run", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_package_has_few_names() -> None:
    assert len(factorcell.__all__) <= 24
    for name in factorcell.__all__:
        assert getattr(factorcell, name) is not None
