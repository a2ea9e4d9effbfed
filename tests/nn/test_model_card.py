"""Tests of the model card: its numbers, its example, and escaping."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factorcell.config import Config, HuggingFaceOptions
from factorcell.evaluation.classification import classify
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import save_result
from factorcell.io import files
from factorcell.runs import saved_results, summary
from factorcell.runs.run import Run
from factorcell.training.fit import finetune, train_run
from tests.pretrained_models import write_pretrained
from tests.small_runs import CONTEXT, ROWS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = Config.of(
        context=list(CONTEXT), min_count=1, min_context_count=1, embedding_size=4, hidden_size=4, rank=1, epochs=1
    )
    return train_run(ROWS, ROWS, config, tmp_path / "run")


def test_card_shows_the_results_of_training(run: Run) -> None:
    text = (run.folder / "README.md").read_text(encoding="utf-8")
    best = min(row["perplexity"] for row in run.log() if row["split"] == "dev")
    assert "texts: 10 (" in text
    assert f"{run.model.parameter_count():,} parameters" in text
    assert "city (2 values)" in text
    assert f"| development texts | perplexity per word | {best:.2f} |" in text
    assert "bits per byte" not in text  # words do not determine texts
    assert summary.render_card(run) in text
    assert all(summary.escape_markdown(fact) in text for _, fact in summary.result_facts(run))


def test_card_shows_saved_results_unless_it_was_edited(run: Run) -> None:
    path, result = run.folder / "README.md", evaluate(run, ROWS)
    row = result.result_row(run, "test.csv")
    assert save_result(run, row, result.figures) is None
    assert summary.render_card(run) in path.read_text(encoding="utf-8")
    assert f"| test.csv | perplexity per word | {row['perplexity']:.2f}" in summary.render_card(run)
    run.folder = run.folder.rename(run.folder.with_name("renamed"))
    path = run.folder / "README.md"
    assert save_result(run, {**row, "table": "b.csv"}, result.figures) is None
    text = path.read_text(encoding="utf-8").replace("## Use", "## How to use")
    assert "| b.csv |" in text
    path.write_text(text, encoding="utf-8")
    assert save_result(run, {**row, "table": "c.csv"}, result.figures) is None
    assert path.read_text(encoding="utf-8") == text
    assert [row["table"] for row in saved_results.read(run.folder)][-3:] == ["test.csv", "b.csv", "c.csv"]


def test_example_of_the_card_runs(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.folder.parent)
    match = re.search(r"```python\n(.*?)\n```", summary.render_card(run), re.DOTALL)
    assert match
    source = match[1].splitlines()
    source[-1] = f"print({source[-1]})"
    exec("\n".join(source), {})
    assert float(capsys.readouterr().out.strip("[]\n")) > 0  # the nats of the text


def test_example_leaves_out_a_column_whose_values_are_all_rare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, expected in (("city", ".score(['...'])"), ("city stars", ".score(['...'], context={'stars': '5'})")):
        names = columns.split()
        config = Config.of(context=names, min_count=1, min_context_count=5, embedding_size=4, hidden_size=4, epochs=0.1)
        rows = [{**row, "city": f"{row['city']} {index}"} for index, row in enumerate(ROWS * 2)]
        run = train_run(rows, rows, config, tmp_path / names[-1])
        (example,) = re.findall(r"```python\n(.*?)\n```", summary.render_card(run), re.DOTALL)
        assert example.endswith(expected)
        monkeypatch.chdir(tmp_path)
        exec(f"{example.replace('Run.open', 'result = Run.open')}\nprint(result)", {})
        assert float(capsys.readouterr().out.strip("[]\n")) > 0  # the nats of the text


def test_example_has_rounded_numbers(run: Run) -> None:
    assert "'lat': 53.26, 'lon': 9.2}" in summary.render_card(run)


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) ![x](http://a.b/c.png)",
    "[x]: http://a.b",
    "http://a.b/c www.a.b ann@a.b",
    "<http://a.b>",
    "`code` ``` ~~~ *bold* __bold__ ~~gone~~",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "12) item",
    "> quote",
    "    code",
    "a | b | c",
    "&lt;b&gt; &amp; &#60;",
    "\\\\<b> \\\\`",
    "===",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_in_values_is_escaped(text: str) -> None:
    markdown = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"html": True, "linkify": False})
    for before, tag in (("# ", "heading"), ("- ", "list_item"), ("| a |\n|---|\n| ", "table")):
        tokens = markdown.parse(before + summary.escape_markdown(text))
        inline = [token for token in tokens if token.type == "inline"][-1]
        assert {child.type for child in inline.children} <= {"text", "text_special"}, before
        assert "".join(child.content for child in inline.children) == text.strip()
        assert any(token.type.startswith(tag) for token in tokens)


@pytest.mark.parametrize("text", ["http://a.b/c", "HTTPS://a.b", "www.a.b", "ann@a.b", "see http://a.b"])
def test_values_do_not_become_links(text: str) -> None:
    assert not re.search(r"\w://|www\.|\w@", summary.escape_markdown(text), re.IGNORECASE)


def test_example_with_backticks_in_its_values_is_fenced(run: Run) -> None:
    run.schema = replace(run.schema, variables=(replace(run.schema.variables[0], name="a```\nb", column="a```\nb"),))
    text = summary.render_card(run)
    assert text.count("\n````python\n") == text.count("\n````\n") == 1


def metadata(run: Run) -> dict[str, Any]:
    """Return the metadata of the card as the hub reads it."""
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    data: dict[str, Any] = hub.ModelCard.load(run.folder / "README.md").data.to_dict()
    return data


def test_metadata_names_the_library_and_the_task(run: Run) -> None:
    assert metadata(run) == {
        "library_name": "factorcell",
        "pipeline_tag": "text-generation",
        "tags": ["language-model", "context"],
    }


def test_the_card_has_no_paths_and_no_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private place"
    private.mkdir()
    table = private / "table.jsonl"
    rows = [{**row, "user": f"user-{index % 2}"} for index, row in enumerate(ROWS)]
    files.write_rows(table, rows)
    base = write_pretrained(private / "base", [row["text"] for row in ROWS])
    options = {"max_tokens": 30, "min_user_count": 1, "min_context_count": 1, "epochs": 0.1}
    config = Config.of(base=str(base), context=["city"], user="user", **options)
    run = train_run(table, table, config, private / "run")
    finetuned = finetune(run, table, dev=table, out=private / "finetuned", epochs=0.1)
    monkeypatch.chdir(private)
    for model in (run, finetuned, Run.open("run")):
        text = summary.render_card(model)
        summary.write_card(model)
        assert "private place" not in text + (model.folder / "README.md").read_text(encoding="utf-8")
        assert "user-" not in text
        assert 'base "base",' in text
        assert f"# {model.folder.name}" in text
    assert "base_model" not in metadata(run)
    assert isinstance(run.config.backbone, HuggingFaceOptions)
    run.config = replace(run.config, backbone=replace(run.config.backbone, base="HuggingFaceTB/SmolLM2-135M"))
    summary.write_card(run)
    assert metadata(run)["base_model"] == "HuggingFaceTB/SmolLM2-135M"


def test_a_snapshot_of_symbolic_links_opens_and_results_do_not_change_its_targets(run: Run, tmp_path: Path) -> None:
    evaluation = evaluate(run, ROWS * 2)
    save_result(run, evaluation.result_row(run, ROWS * 2), evaluation.figures)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b2c"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    contents = {}
    for number, path in enumerate(sorted(run.folder.iterdir())):
        if path.name not in ("checkpoint.safetensors", "training.lock"):
            blob = blobs / f"{number:064x}"
            contents[blob] = path.read_bytes()
            blob.write_bytes(contents[blob])
            (snapshot / path.name).symlink_to(Path("..", "..", "blobs", blob.name))
    opened = Run.open(snapshot)
    assert opened.score_rows(ROWS) == run.score_rows(ROWS)
    assert opened.predict(ROWS, "city").rows() == run.predict(ROWS, "city").rows()
    assert save_result(opened, evaluation.result_row(opened, ROWS), evaluation.figures) is None
    assert save_result(opened, classify(opened, ROWS, "city").result_row(opened, ROWS, "city"), {}) is None
    assert {blob: blob.read_bytes() for blob in contents} == contents
    assert (
        len(saved_results.read(snapshot)) == 1 + 2
    )  # of training, of `evaluate` (twice the same table), of `classify`
