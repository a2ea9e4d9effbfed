"""Tests of the model card: its numbers, its example, and escaping."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from factorcell.config import Config
from factorcell.evaluation import results
from factorcell.evaluation.perplexity import evaluate_by_columns
from factorcell.model import model_card
from factorcell.model.run import Run
from factorcell.training.fit import fit
from tests.small_runs import CONTEXT, ROWS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = Config.of(
        context=list(CONTEXT), min_count=1, min_context_count=1, embedding_size=4, hidden_size=4, rank=1, epochs=1
    )
    return fit(ROWS, ROWS, config, tmp_path / "run")


def test_card_shows_the_results(run: Run) -> None:
    evaluation = evaluate_by_columns(run, ROWS * 2, by=["city"])
    assert results.save_result(run, results.evaluation_row(run, ROWS * 2, evaluation), evaluation.texts) is None
    result = evaluation.row
    text = (run.folder / "README.md").read_text(encoding="utf-8")
    best = min(row["perplexity"] for row in run.log() if row["split"] == "dev")
    assert "10 texts" in text
    assert f", {run.model.backbone.adapted_share():.2%} of its parameters)" in text
    assert "city: category, 2 values" in text
    assert f"| development | perplexity per word | {best:.2f} |" in text
    assert f"| rows | perplexity per word | {result['perplexity']:.4g} |" in text
    low, high = (f"{result[f'bits_per_byte_{end}']:.4g}" for end in ("low", "high"))
    assert f"| rows | bits per byte | at least {result['bits_per_byte']:.4g} ({low} to {high}) |" in text
    (best_bits,) = {row["bits_per_byte"] for row in run.log() if row["split"] == "dev" and row["perplexity"] == best}
    assert f"| development | bits per byte | at least {best_bits:.4g} |" in text
    assert best_bits == pytest.approx(result["bits_per_byte"], rel=1e-5)  # the same rows
    assert re.search(r"\| rows \| effect of removing the context \| [+-]\d+\.\d% ", text)
    assert text == model_card.render(run)


def test_example_of_the_card_runs(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    match = re.search(r"```python\n(.*?)\n```", model_card.render(run), re.DOTALL)
    assert match
    source = match[1].splitlines()
    source[-1] = f"print({source[-1]})"
    exec("\n".join(source), {})
    assert "perplexity" in capsys.readouterr().out


def test_example_has_rounded_numbers(run: Run) -> None:
    assert "'lat': 53.26, 'lon': 9.2}" in model_card.render(run)


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
        tokens = markdown.parse(before + model_card.escape_markdown(text))
        inline = [token for token in tokens if token.type == "inline"][-1]
        assert {child.type for child in inline.children} <= {"text", "text_special"}, before
        assert "".join(child.content for child in inline.children) == text.strip()
        assert any(token.type.startswith(tag) for token in tokens)
    (inline,) = (token for token in markdown.parse(f"from {model_card.code_span(text)}") if token.type == "inline")
    assert [child.type for child in inline.children] == ["text", "code_inline"]
    assert inline.children[1].content.strip() == text.strip()


@pytest.mark.parametrize("text", ["http://a.b/c", "HTTPS://a.b", "www.a.b", "ann@a.b", "see http://a.b"])
def test_values_do_not_become_links(text: str) -> None:
    assert not re.search(r"\w://|www\.|\w@", model_card.escape_markdown(text), re.IGNORECASE)


def test_example_with_backticks_in_its_values_is_fenced(run: Run) -> None:
    run.schema = replace(run.schema, variables=(replace(run.schema.variables[0], name="a```\nb", column="a```\nb"),))
    text = model_card.render(run)
    assert text.count("\n````python\n") == text.count("\n````\n") == 1
