"""Notices about contexts of some columns: columns that predict them, and columns without an effect."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorcell import files
from factorcell.commands.main import main
from factorcell.config import Notice
from factorcell.evaluation.conditional_prior import save_priors
from factorcell.evaluation.context_notices import (
    columns_with_values,
    common_columns,
    context_notices,
    differing_columns,
)
from factorcell.evaluation.likelihood_ratios import explain
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.run_warnings import measure_context_effect
from factorcell.evaluation.token_evidence import most_shifted_tokens
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.model.run import Run
from tests.small_runs import ROWS, make_run

SPEAKERS = {"ann": "justice", "bea": "justice", "cid": "advocate", "dan": "advocate", "eve": "advocate"}


def make_rows(count: int) -> list[dict[str, Any]]:
    """Return turns of speakers, each of whom has one role, with a mood that depends on neither."""
    random = np.random.default_rng(3)
    names = [str(random.choice([*SPEAKERS], p=[0.1, 0.2, 0.4, 0.2, 0.1])) for _ in range(count)]
    return [
        {"text": "may it please", "role": SPEAKERS[name], "speaker": name, "mood": str(random.choice(["glad", "sad"]))}
        for name in names
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rows = make_rows(300)
    run = make_run(tmp_path_factory.mktemp("runs") / "run", ("role", "speaker", "mood"), rows=rows)
    run.save_weights({})
    save_priors(run, run.prepare(rows), run.prepare(rows))
    return run


def notices_of(function: Callable[[], Any]) -> list[str]:
    """Return the notices about contexts that a function emits."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if w.category is Notice and "without the text" in str(w.message)]


def test_a_column_that_determines_a_specified_column_is_named_with_an_example(run: Run) -> None:
    (notice,) = context_notices(run, ["role"])
    assert notice.startswith("the other columns, mainly speaker, predict role without the text (accuracy 1.00 on ")
    # The most frequent role is advocate, and its most frequent speaker is cid.
    assert notice.endswith(
        "but the contexts do not specify speaker: the result lacks what the model learned from speaker; "
        "specify it too, as in role=advocate with speaker=cid, or train a run without speaker"
    )
    assert context_notices(run, ["role", "mood"]) == [notice]


def test_independent_columns_and_complete_contexts_cause_no_notice(run: Run, tmp_path: Path) -> None:
    for columns in ([], ["mood"], ["role", "speaker"], ["role", "speaker", "mood"]):
        assert context_notices(run, columns) == []
    assert context_notices(run, ["role"], ["speaker"]) == []
    unadapted = make_run(tmp_path / "plain", ("role", "speaker"), rows=make_rows(9), adapt=[], output_bias=[])
    assert context_notices(unadapted, ["role"]) == []


def test_users_are_not_an_example(tmp_path: Path) -> None:
    rows = make_rows(300)
    run = make_run(tmp_path / "run", ("role",), {"user": "speaker", "min_user_count": 1}, rows)
    save_priors(run, run.prepare(rows), run.prepare(rows))
    (notice,) = context_notices(run, ["role"])
    assert "specify it too, or train a run without speaker" in notice


def test_functions_report_columns_that_predict_the_specified_ones(run: Run) -> None:
    texts, justice, advocate = ["may it please"], {"role": "justice"}, {"role": "advocate"}
    bea, cid = {**justice, "speaker": "bea"}, {**advocate, "speaker": "cid"}
    options = GenerationOptions(max_tokens=2)

    def emitted(contexts: list[dict[str, str]]) -> list[int]:
        """Return how many notices each function emits."""
        first, second = contexts
        functions: list[Callable[[], Any]] = [
            lambda: explain(run, texts, {"first": first, "second": second}),
            lambda: most_shifted_tokens(run, first, second),
            lambda: [*generate(run, contexts, options=options)],
            lambda: run.score(texts, context=first),
            lambda: run.score([{"text": "may", "mood": "", "speaker": "", **first}]),
        ]
        return [len(notices_of(function)) for function in functions]

    assert emitted([justice, advocate]) == [1] * 5
    with pytest.warns(Notice, match="without the text") as caught:
        run.score(texts, context=justice)
    assert caught[0].filename == __file__  # the notice names the line that called the function
    assert emitted([bea, cid]) == [0] * 5
    assert emitted([bea, {**cid, "speaker": "bea"}])[:2] == [0, 0]  # the same speaker in both contexts
    contexts = {"first": justice, "second": advocate}
    assert not notices_of(lambda: explain(run, texts, contexts, text_contexts=[{"speaker": "bea"}]))


@pytest.mark.filterwarnings("always::factorcell.config.Notice")
def test_commands_and_their_pages_report_columns_that_predict_the_specified_ones(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    between = ["--between", "role=justice", "role=advocate"]
    files.write_rows(tmp_path / "table.jsonl", [{"text": "may it", "role": "justice"}])
    for name, *more in (
        ("explain", "--text", "may it please", *between, "--page", str(tmp_path / "explain.html")),
        ("contexts", *between, "--page", str(tmp_path / "contexts.html")),
        ("generate", "--context", "role=justice", "--max-tokens", "2"),
        ("generate", "--context", "role=justice", "--max-tokens", "2", "--stream"),
        ("score", str(tmp_path / "table.jsonl"), "--unknown", "expected"),
    ):
        assert main([name, str(run.folder), *more]) == 0
        assert capsys.readouterr().err.count("mainly speaker, predict role") == 1, name
    for page in ("explain.html", "contexts.html"):
        assert "mainly speaker, predict role" in (tmp_path / page).read_text(encoding="utf-8")


def test_columns_with_values_are_those_that_some_text_has(tmp_path: Path) -> None:
    context = ("city", "stars", "lat:number", "note:text", "vec:vector")
    rows = [{**row, "note": "sea", "vec": [1.0, row["lat"]]} for row in ROWS]
    run = make_run(tmp_path / "run", context, rows=rows)
    values = {"city": "Oslo", "stars": "5", "lat": 50.0, "note": "sea", "vec": [1.0, 2.0]}
    for name, value in values.items():
        assert columns_with_values(run.read([""], [{name: value}])) == [name]
    assert columns_with_values(run.read(["", ""], [values, values])) == ["city", "stars", "lat", "vec", "note"]


def test_contexts_differ_in_columns_that_only_some_of_them_have() -> None:
    contexts = [{"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "4", "d": "5"}]
    assert differing_columns(contexts) == ["b", "c", "d"]
    assert common_columns(contexts) == {"a", "b"}


def test_the_effect_of_each_column_is_that_without_the_others(tmp_path: Path) -> None:
    context = ("city", "stars", "lat:number", "note:text", "vec:vector")
    rows = [{**row, "note": row["text"], "vec": [1.0, row["lat"]]} for row in ROWS]
    run = make_run(tmp_path / "run", context, rows=rows)
    held_out = run.prepare(rows)
    effects = (measure_context_effect(run, held_out) or {})["columns"]
    assert list(effects) == ["city", "stars", "lat", "note", "vec"]
    without = evaluate(run, held_out.without_context(run.schema))["perplexity"]
    texts = [row["text"] for row in rows]
    for name, row in effects.items():
        alone = evaluate(run, run.read(texts, [{name: row[name]} for row in rows]))["perplexity"]
        assert row["gain_over_unknown_context"] == pytest.approx(1 - alone / without)
    unseen = run.prepare([{**row, "city": "Rome"} for row in rows])
    assert "city" not in (measure_context_effect(run, unseen) or {})["columns"]
    one_column = make_run(tmp_path / "one", ("city",))
    assert "columns" not in (measure_context_effect(one_column, one_column.prepare(rows)) or {})


def test_a_specified_column_without_a_significant_effect_is_named(run: Run, tmp_path: Path) -> None:
    row = {"texts": 90, "gain_over_unknown_context": 0.01, "gain_over_unknown_context_high": 0.04}
    low = "gain_over_unknown_context_low"
    columns = {"role": {**row, low: 0.005}, "mood": {**row, low: -0.02}, "speaker": row}
    facts = {"context": {**row, "gain_over_unknown_context_low": 0.005, "columns": columns}}
    model = make_run(tmp_path / "run", ("role", "speaker", "mood"), rows=make_rows(30))
    files.write_json(model.folder / "training.json", facts)
    expected = (
        f"{model.folder}: without the other columns, mood does not significantly lower the perplexity (gain over an "
        "unknown value: +1.0% [-2.0, +4.0] not significant, 90 texts); interpret its use of mood with caution"
    )
    assert context_notices(model, ["role", "speaker", "mood"]) == [expected]
    assert context_notices(model, ["role", "speaker"]) == []
    facts = {"context": {**row, low: -0.01, "columns": columns}}
    files.write_json(model.folder / "training.json", facts)
    assert context_notices(model, ["mood"]) == []
    (model.folder / "training.json").write_text("{", encoding="utf-8")
    assert "its records cannot be read" in context_notices(model, ["mood"])[0]
