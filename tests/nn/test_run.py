"""Tests of run folders: creating, opening and scoring."""

import math
from pathlib import Path

import numpy as np
import pytest

from factorcell.data.corpus import target_ids, target_offsets
from factorcell.data.tokenizers.tokenizer import END, START
from factorcell.errors import UserError
from factorcell.io import files
from factorcell.runs.run import Run
from tests.findings import collected_findings
from tests.small_runs import ROWS, make_letters, make_run


def test_run_opens_without_its_data_and_scores_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", output_bias=["low_rank", "one_hot"])
    run.save_weights({"step": 1})
    opened = Run.open(tmp_path / "run")
    assert (opened.config, opened.schema, opened.tokenizer.tokens) == (run.config, run.schema, run.tokenizer.tokens)
    assert opened.score_rows(ROWS) == run.score_rows(ROWS)


def test_scores_of_one_row_equal_those_among_many(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    many = run.score_rows(ROWS, tokens=True)
    assert [row["row"] for row in many] == list(range(len(ROWS)))
    for row, result in zip(ROWS, many, strict=True):
        (alone,) = run.score_rows(row)
        assert alone["nats"] == pytest.approx(result["nats"], abs=1e-5)
        assert result["nats"] == pytest.approx(sum(token["nats"] for token in result["tokens"]))
        assert result["perplexity"] == pytest.approx(math.exp(result["nats"] / result["targets"]))
        assert [token["token"] for token in result["tokens"]] == [*str(row["text"]).split(), "</s>"]


@pytest.mark.parametrize("tokenizer", ["char", "grapheme"])
def test_long_texts_are_scored_whole(tokenizer: str) -> None:
    texts = ["abc" * 20 + end for end in ("", "a", "c", "ab")]
    rows = [{"text": text, "city": city} for text in texts for city in ("Oslo", "Nice")]
    short, longer = (make_letters(data={"tokenizer": tokenizer, "max_tokens": max_tokens}) for max_tokens in (5, 500))
    scored = short.score_rows(rows, tokens=True)
    assert scored == longer.score_rows(rows, tokens=True)
    assert [row["targets"] for row in scored] == [len(row["text"]) + 1 for row in rows]
    assert len({row["nats"] for row in scored}) == len(rows)
    truncated = short.prepare(rows)
    assert truncated.lengths.tolist() == [5] * len(rows)
    assert len(set(short.nats(truncated).reshape(-1, 2, 5).sum(2)[:, 0].tolist())) == 1


def test_no_rows_have_no_scores_and_repr_describes_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert run.score_rows([]) == run.score_rows(()) == run.score_rows([], context={"stars": 5}) == []
    count = run.model.parameter_count()
    assert repr(run) == f"Run('{tmp_path}/run': word, city, stars, lat, lon, {count:,} parameters)"
    assert "no context" in repr(make_run(tmp_path / "plain", context=()))


def test_scores_of_unknown_words_are_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    known, unknown = ROWS[0]["text"], "qqqq xxxx"
    for texts, names in (([known], []), ([known, unknown], ["unknown words"])):
        with collected_findings() as findings:
            run.score(texts)
        assert [finding.name for finding in findings if "out of vocabulary in 1 of 2" in finding.text] == names


def test_targets_are_all_tokens_except_the_start(tmp_path: Path) -> None:
    corpus = make_run(tmp_path / "run").prepare(ROWS)
    flat, starts = target_ids(corpus), target_offsets(corpus)
    assert START not in flat
    for row in range(len(corpus)):
        ids = corpus.tokens[corpus.offsets[row] : corpus.offsets[row + 1]]
        assert flat[starts[row] : starts[row + 1]].tolist() == ids[1:].tolist()
    assert np.count_nonzero(flat == END) == len(corpus)


def test_initial_weights_depend_on_the_seed_only(tmp_path: Path) -> None:
    import torch

    run = make_run(tmp_path / "a")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = Run(tmp_path, run.config, run.tokenizer, run.schema)
    assert torch.equal(torch.rand(1), expected)
    second = Run(tmp_path, run.config, run.tokenizer, run.schema)
    assert all(map(torch.equal, first.model.parameters(), second.model.parameters()))


def test_folders_that_cannot_be_created_or_opened(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="run: exists already"):
        Run.create(tmp_path / "run", run.config, run.tokenizer, run.schema)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file: exists already"):
        Run.create(tmp_path / "file", run.config, run.tokenizer, run.schema)
    with pytest.raises(UserError, match="cannot be created"):
        Run.create(tmp_path / "file" / "below", run.config, run.tokenizer, run.schema)
    with pytest.raises(UserError, match="expected a run folder, got a folder of runs, such as"):
        Run.open(tmp_path)
    with pytest.raises(UserError, match=r"weights.safetensors: there is no such file"):
        Run.open(tmp_path / "run")
    for name in ("log.jsonl", "checkpoint.safetensors"):
        (tmp_path / "run" / name).touch()
        with pytest.raises(UserError, match=r"run: training stopped before its first evaluation; run the training c"):
            Run.open(tmp_path / "run")
        (tmp_path / "run" / name).unlink()
    other = make_run(tmp_path / "other", hidden_size=7)
    other.save_weights({})
    files.write(tmp_path / "run" / "weights.safetensors", (other.folder / "weights.safetensors").read_bytes())
    with pytest.raises(UserError, match="does not belong to this config"):
        Run.open(tmp_path / "run")
    files.write_json(tmp_path / "run" / "schema.json", {"variables": [{}]})
    with pytest.raises(UserError, match="not a context schema"):
        Run.open(tmp_path / "run")
    files.write_json(tmp_path / "run" / "config.json", {"format": 1, "model": {"rnk": 1}})
    with pytest.raises(UserError, match=r"config.json: unknown key in \[model\] 'rnk'"):
        Run.open(tmp_path / "run")


def test_text_as_source_is_rejected_with_advice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"^our stay: unknown kind of file; .*; to read a text, pass a list of texts$"):
        run.score_rows("our stay")
    with pytest.raises(UserError, match=r"unknown kind of file; (?!.*to read a text)"):
        run.score_rows(Path("our stay"))
    with pytest.raises(UserError, match=r"stay\.csv: there is no such file$"):
        run.score_rows("stay.csv")


def test_run_can_be_created_in_an_empty_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    assert Run.create(tmp_path / "empty", run.config, run.tokenizer, run.schema).folder == tmp_path / "empty"


@pytest.mark.parametrize(("best_step", "has_stopped"), [(10, True), (20, True), (30, False)])
def test_a_run_stopped_improving_if_its_last_evaluation_was_not_the_best(
    best_step: int, has_stopped: bool, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run")
    assert not run.stopped_improving()
    rows = [
        {"split": "dev", "step": step, "steps": 30, "best": 5.0 - 0.1 * (min(step, best_step) // 10)}
        for step in (10, 20, 30)
    ]
    files.write_rows(run.log_path, rows)
    assert run.stopped_improving() == has_stopped
