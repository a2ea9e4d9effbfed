"""The n-gram mixture against explicit counts, and as the predictor of a run in scoring, completion and generation."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from factorcell.commands.cli.main import main
from factorcell.completion.completer import Completer
from factorcell.data.corpus import target_offsets
from factorcell.errors import UserError
from factorcell.evaluation.classification import classify
from factorcell.evaluation.likelihoods import log_likelihoods
from factorcell.evaluation.perplexity import evaluate
from factorcell.evaluation.text_figures import save_result
from factorcell.generation.generate import GenerationOptions, generate
from factorcell.io import files
from factorcell.ngram import mixture
from factorcell.ngram.mixture import CACHE, CACHE_DECAY, CACHE_PRIOR, NGRAM, VALUE, CountModels, count_by_value
from factorcell.ngram.ngram import NGram, count_ngrams, estimate_discounts
from factorcell.reports.runs import report_page
from factorcell.runs import saved_results, summary
from factorcell.runs.run import Run
from factorcell.training.mixture import MixedModels, fit_mixture
from tests.pages import Page
from tests.small_runs import ROWS, make_run

SHARES = (0.1, 0.6, 0.8)  # s_n of the orders


def with_mixture(run: Run) -> Run:
    """Give a run a mixture with all components and random weights."""
    corpus = run.prepare(ROWS)
    ngram = NGram(run.folder, run.config, run.tokenizer, count_ngrams(corpus, 3))
    variable = run.schema.categories[0]
    orders = count_by_value(ngram, corpus, 0, 3)
    for order, share in zip(orders, SHARES, strict=True):
        order.share = share
    counts = CountModels(ngram, variable, orders, (NGRAM, VALUE, CACHE))
    weights = np.random.default_rng(0).dirichlet(np.ones(4), counts.length_count)
    run.mixture = mixture.Mixture(run.model, run.schema, counts, weights)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of words with random weights and a mixture, which is saved in its folder."""
    mixed = with_mixture(make_run(tmp_path / "run", ("city", "stars")))
    mixed.save_weights({})
    assert mixed.mixture is not None
    mixed.mixture.save(mixed.folder)
    return mixed


@pytest.fixture
def character_run(tmp_path: Path) -> Run:
    """A run of characters with random weights and a mixture."""
    return with_mixture(make_run(tmp_path / "run", ("city", "stars"), tokenizer="char", max_tokens=12))


def value_counts(texts: list[list[int]], is_used: NDArray[np.bool_]) -> Counter[tuple[int, ...]]:
    """Count the n-grams of orders 1 to 3 in some texts as Kneser-Ney smoothing does."""
    used = [text for text, is_one_of_them in zip(texts, is_used, strict=True) if is_one_of_them]
    occurrences = Counter(
        tuple(text[end - n : end]) for text in used for n in (1, 2, 3) for end in range(max(n, 2), len(text) + 1)
    )
    predecessors = Counter(gram[1:] for gram in occurrences if len(gram) > 1)  # the keys are distinct n-grams
    return Counter(
        {
            gram: predecessors[gram] if len(gram) < 3 and predecessors[gram] else occurrences[gram]
            for gram in occurrences
        }
    )


def kneser_ney_step(by_value: list[Counter[tuple[int, ...]]], value: int, gram: tuple[int, ...], lower: float) -> float:
    """Return p_n of the last token of an n-gram given the others, from the counts of each value and from p_{n-1}."""
    same_order = [count for counts in by_value for other, count in counts.items() if len(other) == len(gram)]
    discounts = (0.0, *estimate_discounts(np.array(same_order)))
    following = {
        other: count for other, count in by_value[value].items() if len(other) == len(gram) and other[:-1] == gram[:-1]
    }
    if not following:
        return lower
    count, total = following.get(gram, 0), sum(following.values())
    backoff = sum(discounts[min(other_count, 3)] for other_count in following.values()) / total
    return (count - discounts[min(count, 3)]) / total + backoff * lower


def expected_probabilities(run: Run, row: dict[str, Any], ids: list[int]) -> list[float]:
    """Compute the probability of each target with counts from dictionaries, and the nats of the neural model."""
    assert run.mixture is not None
    weights, ngram = run.mixture.weights, run.mixture.counts.ngram
    corpus = run.prepare([row])
    texts = run.prepare(ROWS)
    parts = np.split(texts.tokens, texts.offsets[1:-1])
    all_texts = [part.tolist() for part in parts]
    by_value = [
        value_counts(all_texts, texts.categories[:, 0] == value)
        for value in range(len(run.schema.categories[0].values))
    ]
    (value,) = corpus.categories[:, 0].tolist()
    blocks = ngram.blocks(corpus)
    of_all_texts = ngram.target_probabilities(*next(blocks))
    with torch.no_grad():
        neural = np.exp(-run.model(run.batch(corpus, np.array([0]))).double().numpy()[0])
    base = np.exp(-ngram.nats(corpus))
    results = []
    for place in range(1, len(ids)):
        in_value = 1 / (len(run.tokenizer) - 1)
        for n in (1, 2, 3):
            mixed = SHARES[n - 1] * in_value + (1 - SHARES[n - 1]) * of_all_texts[n - 1][place - 1]
            gram = tuple(ids[max(0, place - n + 1) : place + 1])
            in_value = kneser_ney_step(by_value, value, gram, mixed) if len(gram) == n and value >= 0 else mixed
        if value < 0:
            in_value = base[place - 1]
        recent = ids[1:place][::-1]
        decays = [CACHE_DECAY**i for i in range(len(recent))]
        hits = sum(decay for decay, token in zip(decays, recent, strict=True) if token == ids[place])
        cache = (hits + CACHE_PRIOR * base[place - 1]) / (sum(decays) + CACHE_PRIOR)
        longest = max(
            length
            for length in range(min(place, 2) + 1)
            if length == 1  # every token of the vocabulary is a history, even if training never had it
            or any(ids[place - length : place] == part[i : i + length] for part in all_texts for i in range(len(part)))
        )
        components = [neural[place - 1], base[place - 1], in_value, cache]
        results.append(float(weights[longest] @ components))
    return results


@pytest.mark.parametrize("text", ["the sea is cold", "the cold sun and the cold", "", "sand of new words the sea"])
@pytest.mark.parametrize("city", ["Oslo", "Nice", None])
def test_nats_agree_with_explicit_counts(run: Run, text: str, city: str | None) -> None:
    row = {"text": text, "city": city, "stars": "5"}
    corpus = run.prepare([row])
    expected = expected_probabilities(run, row, corpus.tokens.tolist())
    assert run.nats(corpus) == pytest.approx(-np.log(expected), abs=1e-5)


def test_steps_agree_with_nats_and_their_probabilities_sum_to_one(run: Run) -> None:
    corpus = run.prepare(ROWS)
    nats, starts, conditioning = (
        run.nats(corpus),
        target_offsets(corpus),
        run.predictor.condition(corpus.context(np.arange(len(corpus)))),
    )
    for text in range(len(corpus)):
        ids, state = corpus.tokens[corpus.offsets[text] : corpus.offsets[text + 1]], None
        one_text = conditioning.select(torch.tensor([text]))
        for place, token in enumerate(ids[:-1].tolist()):
            with torch.no_grad():
                logs, state = run.predictor.step(torch.tensor([token]), one_text, state)
            assert logs.double().exp().sum() == pytest.approx(1, abs=1e-5)
            assert -logs[0, ids[place + 1]] == pytest.approx(nats[starts[text] + place], abs=1e-4)


def test_a_saved_mixture_predicts_the_same(run: Run) -> None:
    opened, corpus = Run.open(run.folder), run.prepare(ROWS)
    assert np.array_equal(opened.nats(corpus), run.nats(corpus))
    assert Run.open(run.folder, mixture=False).mixture is None
    neural = Run.open(run.folder, mixture=False).nats(corpus)
    assert not np.allclose(neural, run.nats(corpus))


def test_states_can_be_selected_joined_and_stored(run: Run) -> None:
    corpus = run.prepare(ROWS[:4])
    conditioning = run.predictor.condition(corpus.context(np.arange(4)))
    tokens = torch.tensor([run.tokenizer.specials.start] * 4)
    with torch.no_grad():
        _, state = run.predictor.step(tokens, conditioning)
        buffer = state.reserve(6)
        buffer.put(1, state)
        order = torch.tensor([3, 0, 0])
        stored, joined = (
            buffer.select(order + 1),
            state.select(torch.tensor([3])).cat([state.select(torch.tensor([0, 0]))]),
        )
        words = torch.tensor([5, 6, 7])
        expected = run.predictor.step(words, conditioning.select(order), state.select(order))[0]
        for other in (stored, joined):
            assert torch.equal(run.predictor.step(words, conditioning.select(order), other)[0], expected)


def test_completions_are_the_most_probable_texts(character_run: Run) -> None:
    completer, context = Completer(character_run), {"city": "Oslo", "stars": "5"}
    suggestions = completer.complete("the s", context=context, k=5)
    texts = [suggestion.text for suggestion in suggestions]
    scores = completer.log_probabilities("the s", texts, context=context)
    assert [suggestion.log_probability for suggestion in suggestions] == pytest.approx(scores, abs=1e-4)
    letters = [token for token in character_run.tokenizer.tokens if len(token) == 1]
    others = [f"the s{first}{second}" for first in letters for second in ("", *letters)]
    others = [text for text in others if text not in texts and text == text.strip()]
    assert max(completer.log_probabilities("the s", others, context=context)) <= scores[-1] + 1e-4


def test_the_command_generates_with_the_neural_model_alone(run: Run, tmp_path: Path) -> None:
    command = ["generate", str(run.folder), "--context", "city=Oslo", "--number", "5", "--max-tokens", "6", "--out"]
    mixed_path, neural_path = tmp_path / "mixed.jsonl", tmp_path / "neural.jsonl"
    assert main([*command, str(mixed_path)]) == 0
    assert main([*command, str(neural_path), "--no-ngram-mixture"]) == 0
    mixed_rows, neural_rows = files.read_rows(mixed_path), files.read_rows(neural_path)
    neural_run = Run.open(run.folder, mixture=False)
    options = GenerationOptions(max_tokens=6)
    assert neural_rows == list(generate(neural_run, {"city": "Oslo"}, number=5, options=options))
    assert [row["text"] for row in neural_rows] != [row["text"] for row in mixed_rows]
    assert main([*command, str(mixed_path), "--no-ngram-mixture", "--resume"]) == 2


def test_the_command_completes_with_the_neural_model_alone(
    character_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    character_run.save_weights({})
    assert character_run.mixture is not None
    character_run.mixture.save(character_run.folder)
    command = ["complete", str(character_run.folder), "the s", "--context", "city=Oslo", "--json"]
    for options, is_mixed in (([], True), (["--no-ngram-mixture"], False)):
        assert main([*command, *options]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        completer = Completer(Run.open(character_run.folder, mixture=is_mixed))
        expected = completer.complete("the s", context={"city": "Oslo"}, k=10)
        assert [row["text"] for row in rows] == [suggestion.text for suggestion in expected]
        log_probs = [math.log(row["probability"]) for row in rows]
        assert log_probs == pytest.approx([suggestion.log_probability for suggestion in expected], abs=1e-4)


def test_the_command_classifies_with_the_neural_model_alone(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "texts.jsonl"
    files.write_rows(table, ROWS)
    command = ["classify", str(run.folder), str(table), "--target", "city", "--priors", "uniform", "--json"]
    nats = []
    for options, is_mixed in (([], True), (["--no-ngram-mixture"], False)):
        assert main([*command, *options]) == 0
        nats.append(json.loads(capsys.readouterr().out.splitlines()[0])["value_nats"])
        expected = classify(Run.open(run.folder, mixture=is_mixed), table, "city", priors="uniform").metrics()
        assert nats[-1] == pytest.approx(expected["value_nats"], abs=1e-6)
    assert abs(nats[0] - nats[1]) > 1e-4


def test_the_command_evaluates_a_mixture_of_neural_models(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = MixedModels(tmp_path / "inner", [run])
    outer = MixedModels(tmp_path / "outer", [inner])
    for mixed in (inner, outer):
        mixed.folder.mkdir()
        mixed.save()
    files.write_rows(tmp_path / "texts.jsonl", ROWS)
    command = ["evaluate", str(outer.folder), str(tmp_path / "texts.jsonl"), "--no-ngram-mixture", "--save"]
    assert main(command) == 2
    assert "--save: cannot save a mixture" in capsys.readouterr().err
    for options, is_mixed in (([], True), (["--no-ngram-mixture"], False)):
        assert main(["evaluate", str(outer.folder), str(tmp_path / "texts.jsonl"), "--json", *options]) == 0
        perplexity = json.loads(capsys.readouterr().out.splitlines()[0])["perplexity"]
        expected = math.exp(Run.open(run.folder, mixture=is_mixed).nats(run.prepare(ROWS)).mean())
        assert perplexity == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["sample", "greedy", "beam", "stochastic"])
def test_generated_texts_have_the_probabilities_of_the_mixture(run: Run, method: str) -> None:
    options = GenerationOptions(method, max_tokens=5, width=4)
    for row in generate(run, [{"city": "Oslo", "stars": "5"}], options=options):
        (scored,) = run.score_rows([{**row["context"], "text": row["text"]}], tokens=True)
        nats = sum(token["nats"] for token in scored["tokens"][: row["tokens"] + row["ended"]])
        assert row["log_probability"] == pytest.approx(-nats, abs=1e-4)


def test_likelihoods_of_candidates_are_those_of_the_mixture(run: Run) -> None:
    corpus = run.prepare(ROWS)
    likelihoods = log_likelihoods(run, corpus, [{"city": "Oslo"}, {"city": "Nice"}])
    for column, city in enumerate(("Oslo", "Nice")):
        changed = run.prepare([{**row, "city": city} for row in ROWS])
        sums = np.add.reduceat(run.nats(changed).astype(np.float64), target_offsets(changed)[:-1])
        assert likelihoods[:, column] == pytest.approx(-sums, abs=1e-3)


@pytest.mark.parametrize(
    "damage",
    [
        {"weights": [[1.0]]},
        {"counts": {"column": "stars2"}},
        {"counts": {"order": 9}},
        {"weights": [[0.5, 0.5, 0.5, 0.5]] * 3},
    ],
)
def test_a_damaged_mixture_is_refused(run: Run, damage: dict[str, Any]) -> None:
    path = run.folder / mixture.FILE
    content = files.read_json(path)
    files.write_json(path, content | damage | {"counts": content["counts"] | damage.get("counts", {})})
    with pytest.raises(UserError, match=mixture.FILE):
        Run.open(run.folder)


def test_the_fitted_mixture_is_at_least_as_good_as_each_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ("city", "stars"))
    rows = ROWS * 4
    run.mixture, row = fit_mixture(run, run.prepare(ROWS), run.prepare(rows))
    perplexities = row["perplexity"]
    assert perplexities["mixture"] <= min(perplexities["neural"], perplexities["ngram"]) * 1.001
    assert math.exp(run.nats(run.prepare(rows)).mean()) == pytest.approx(perplexities["mixture"], rel=0.02)
    assert row["gain_low"] > 0  # the neural model has random weights


def test_the_card_and_the_report_do_not_mix_the_mixture_with_its_neural_model(run: Run, tmp_path: Path) -> None:
    ngram = {"components": ["neural", "ngram"], "perplexity": {"neural": 54.6, "ngram": 29.6, "mixture": 27.9}}
    files.write_json(run.folder / "training.json", {"texts": 5, "targets": 9, "source": "rows", "ngram": ngram})
    row = {"step": 4, "steps": 4, "tokens": 9, "seconds": 1.0, "split": "dev", "best": 54.6}
    files.write_rows(run.log_path, [{**row, "perplexity": 54.6, "perplexity_known": 53.1}])
    development = {"kind": "train", "table": saved_results.DEVELOPMENT, "unit": "word"}
    for figures in ({"perplexity": 54.6}, {"perplexity": 27.9, "predictor": "mixture"}):
        saved_results.append(run.folder, {**development, **figures})
    card = summary.render_card(run)
    assert "27.90 on the development texts (mixture; its neural model alone: 54.60)" in card.replace("\\", "")
    assert "| development texts | perplexity per word, mixture | 27.90 |" in card
    assert "| development texts | perplexity per word | 54.60 |" in card
    assert re.findall(r"\d+\.\d\d", dict(summary.result_facts(run))["perplexity"]) == ["27.90", "54.60"]
    page = Page(report_page([run.folder]))
    assert page.figures["perplexity per word"] == "27.90"
    assert not [row for row in page.rows if "54.60" in row]
    rows = ROWS * 3
    for predictor in (Run.open(run.folder, mixture=False), Run.open(run.folder)):
        evaluation = evaluate(predictor, rows, by=["city"])
        save_result(predictor, evaluation.result_row(predictor, rows), evaluation.figures)
    neural, mixed = (row["perplexity"] for row in saved_results.read(run.folder) if row["kind"] == "evaluate")
    page = Page(report_page([run.folder]))
    assert [row for row in page.rows if f"{mixed:.2f}" in row]
    assert not [row for row in page.rows if f"{neural:.2f}" in row]
