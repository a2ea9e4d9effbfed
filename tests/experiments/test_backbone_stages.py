"""The stages of the study of backbones, with tiny models and texts: parts, methods, resuming, and the order of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import backbone_pages
import backbone_parts
import backbone_pretrained
import backbone_stages
import backbone_training
import backbones
import corpora
import study
from aggregate import Rows as FinishedRows
from backbone_parts import StagedSet, make_parts, stage_tables
from backbone_pretrained import (
    Base,
    LanguageLearner,
    NameVectors,
    SeparateLearner,
    StagedMethod,
    load_base,
    new_reader,
)
from backbone_stages import DEFAULT, LOSS, Limits, Plan, Stage, StagedCase
from backbone_training import Budget, Rows, make_batches, train
from factorcell.evaluation.text_figures import TextSums
from factorcell.hf import ContextConfig, get_context_model
from factorcell.io import files
from tests.pretrained_models import write_pretrained

WORDS = {"sea": "blue wave salt boat", "sun": "gold heat noon sand"}
CHARACTERS = {"dev": 300, "test": 400, "cold": 300, "pairs": 200}
SET = StagedSet(
    "tiny",
    categories=("section", "user"),
    numbers=("year:number",),
    identifiers=("user",),
    target="section",
    cold="user",
    pairs=("section", "user"),
    task="section",
    characters=CHARACTERS,
)
DECADES = StagedSet("tiny", numbers=("year:number",), cold="year", task_step=10.0, characters=CHARACTERS)
RATES = (0.001, 0.003, 0.006)


def text_rows(count: int) -> Rows:
    """Return rows whose words depend on their section."""
    random = np.random.default_rng(count)
    sections = [("sea", "sun")[number % 2] for number in range(count)]
    return [
        {
            "text": " ".join(random.choice(WORDS[section].split(), 4)),
            "section": section,
            "user": f"{section}:user{number % 23:02}",
            "year": 1900.0 + number % 37,
        }
        for number, section in enumerate(sections)
    ]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a data set."""
    monkeypatch.setattr(backbone_parts, "MIN_TARGET_TEXTS", 5)
    monkeypatch.setattr(backbone_parts, "JUDGED_CHARACTERS", 400)
    for part, count in (("train", 400), ("test", 200), ("dev", 10)):
        corpora.write_table(tmp_path / "tiny" / f"{part}.parquet", pa.Table.from_pylist(text_rows(count)))
    return tmp_path


def write_base(folder: Path) -> str:
    return str(write_pretrained(folder / "base", [row["text"] for row in text_rows(40)]))


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return load_base(write_base(tmp_path), torch.device("cpu"), torch.float32)


def tiny_plan(data: Path, methods: Sequence[str], **changes: Any) -> Plan:
    """Return a plan of a stage with some methods of backbones.toml."""
    stage = Stage("stages", write_base(data), 240, ["tiny"], methods, [0], batch_tokens=60, precision="float32")
    options = {"min_count": 5}
    specs = {name: backbones.PLAN.methods[name] for name in methods}
    specs = {
        name: replace(method, options={**options, **method.options}) if method.kind == "context" else method
        for name, method in specs.items()
    }
    return Plan({"tiny": SET}, specs, {"first": replace(stage, **changes)})


def make(plan: Plan, data: Path, limits: Limits | None = None, is_list: bool = False) -> list[dict[str, Any]]:
    """Make the rows of a plan, and return the finished ones."""
    selected = backbone_stages.experiment(plan)
    job = study.Job(selected, data, data / "out", data / "out", (), 1, 1, False, ("x.py",))
    job.results.mkdir(exist_ok=True)
    assert backbone_stages.make_rows(selected, job, limits or Limits("stages", 1.0, (), ()), is_list) == 0
    return files.read_rows(job.rows)


# ---- rows ----


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_each_method_has_a_row(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone_pretrained, "MIN_TASK_TEXTS", 5)
    plan = tiny_plan(data, list(backbones.PLAN.methods))
    rows = {row["row"].split()[2]: row for row in make(plan, data)}
    assert set(rows) == set(backbones.PLAN.methods)
    default = rows[DEFAULT]
    for name, row in rows.items():
        assert row["trained_parameters"] == pytest.approx(default["trained_parameters"], rel=0.35), name
        assert row["processor_seconds"] > 0
        assert row["tokens"] >= 240
        assert ("accuracy" in row) == (name != "lora"), name
        if name != "head":
            assert row["sums"]["bits_per_byte"]["key"] == default["sums"]["bits_per_byte"]["key"]
            assert {"dev_bits_per_byte", "cold_bits_per_byte", "pairs_bits_per_byte"} <= set(row)
    assert rows["text"]["read_tokens"] > rows[DEFAULT]["read_tokens"] > rows["lora"]["read_tokens"]
    assert not list((data / "out").rglob(backbone_training.PROGRESS_FILE))
    monkeypatch.setattr(study, "make_row", lambda *_: pytest.fail("trained again"))
    make(plan, data)


def test_the_rows_of_a_gpu_train_twenty_steps(data: Path) -> None:
    plan = tiny_plan(data, [DEFAULT], plan="stages-gpu", tokens=1200)
    [row] = make(plan, data, Limits("stages-gpu", 1.0, (), ()))
    assert row["steps"] >= 20
    assert make(plan, data, Limits("stages", 1.0, (), ())) == [row]


def test_no_row_starts_beyond_the_limit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tiny_plan(data, [DEFAULT])
    limits = Limits("stages", 0.0001, (), ())
    assert make(plan, data, limits) == []
    assert "1 rows remain" in capsys.readouterr().out
    assert make(plan, data, limits, is_list=True) == []
    assert capsys.readouterr().out.splitlines() == [
        "tiny first default 0.003  seed 0  0.0 minutes",
        "1 rows remain: 0.0 core-hours; 0 finished: 0.0",
    ]
    assert make(plan, data, Limits("stages", 1.0, ["hotels *"], ())) == []
    assert make(plan, data, Limits("stages", 1.0, ["tiny *"], [1])) == []


# ---- parts ----


def test_training_never_sees_the_values_of_a_cold_start(data: Path) -> None:
    paths = corpora.parts(data, data / "tables", "tiny")
    parts = make_parts(SET, paths)
    train_users, train_pairs = ({(row["user"], *extra(row)) for row in parts["train"]} for extra in (no_value, section))
    assert parts["cold"]
    assert not {(row["user"],) for row in parts["cold"]} & train_users
    assert parts["pairs"]
    assert not {(row["user"], row["section"]) for row in parts["pairs"]} & train_pairs
    assert {(row["user"],) for row in parts["test"]} <= train_users
    assert {row["user"][:4] for row in parts["train"]} == {"user"}
    for name, characters in CHARACTERS.items():
        assert sum(len(row["text"]) for row in parts[name]) <= characters
    assert {row["task"] for row in make_parts(DECADES, paths)["train"]} == {"190", "191", "192", "193"}


def no_value(row: dict[str, Any]) -> tuple[str, ...]:
    return ()


def section(row: dict[str, Any]) -> tuple[str, ...]:
    return (row["section"],)


def test_long_texts_are_cut_at_a_space(data: Path, tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} " * 20} for row in text_rows(300)]
    for part in ("train", "test"):
        corpora.write_table(data / "tiny" / f"{part}.parquet", pa.Table.from_pylist(rows))
    texts = corpora.read(stage_tables(SET, data, tmp_path / "cut", 1.0)["train"])["text"].to_pylist()
    assert all(140 < len(text) <= 160 and set(text.split()) <= set(" ".join(WORDS.values()).split()) for text in texts)


# ---- training ----


def test_batches_have_the_tokens_of_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(3, 20, 100)
    budget = Budget(3000, 100, 0.001, 1)
    batches = make_batches(lengths, budget)
    counts = [int(lengths[batch].sum()) for batch in batches]
    assert max(counts) <= 100
    assert sum(counts[:-1]) < 3000 <= sum(counts)
    first_epoch = np.concatenate(batches)[:100]
    assert len(set(first_epoch.tolist())) > 90
    groups = [f"g{row % 3}" for row in range(100)]
    assert all(len({row % 3 for row in batch.tolist()}) == 1 for batch in make_batches(lengths, budget, groups))
    again = make_batches(lengths, budget)
    assert all(np.array_equal(batch, other) for batch, other in zip(batches, again, strict=True))


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [backbone_training.schedule(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert (np.diff(rates[10:]) < 0).all()
    assert rates[-1] < 0.001


class StoppedLearner:
    """A learner that stops at a step, as a process that is killed."""

    def __init__(self, stop: int) -> None:
        torch.manual_seed(0)
        self.rates: Mapping[str, float] = {"bias": 2.0}
        self.module: nn.Module = nn.Linear(3, 3)
        self.steps, self.stop = 0, stop

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Return a loss that depends on the texts and on random numbers."""
        self.steps += 1
        if self.steps > self.stop:
            raise KeyboardInterrupt
        inputs = torch.tensor([[row["x"], 1.0, 0.5] for row in rows])
        return (self.module(inputs) - torch.randn(3)).square().mean(), len(rows)


def test_a_stopped_training_resumes_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone_training, "SAVE_SECONDS", -1.0)
    rows: Rows = [{"x": float(number)} for number in range(20)]
    budget = Budget(100, 10, 0.1, 3)
    batches = make_batches(np.full(20, 2), budget)
    whole = StoppedLearner(1000)
    expected = train(whole, rows, batches, budget, tmp_path / "whole", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(StoppedLearner(4), rows, batches, budget, tmp_path / "stopped", 0.0)
    resumed = StoppedLearner(1000)
    progress = train(resumed, rows, batches, budget, tmp_path / "stopped", 0.0)
    assert resumed.steps == len(batches) - 4
    assert (progress.step, progress.read_tokens) == (expected.step, expected.read_tokens)
    for values, others in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        torch.testing.assert_close(values, others, rtol=0, atol=0)


# ---- methods ----


def test_what_is_read_before_a_text_is_not_predicted(base: Base) -> None:
    """The nats of a batch are those of single texts without padding."""
    rows = text_rows(6)
    learner = LanguageLearner(base, base.model, lambda rows: [f"year: {row['year']:.0f}\n" for row in rows])
    nats = learner.nats(rows)
    for row, value in zip(rows, nats, strict=True):
        prompt, text = base.encode([f"year: {row['year']:.0f}\n", row["text"]])
        ids = torch.tensor([[base.start, *prompt, base.start, *text, base.tokenizer.eos_token_id]])
        with torch.no_grad():
            log_probs = base.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        assert value == pytest.approx(-float(log_probs[len(prompt) + 1 :].sum()), rel=1e-4)
    loss, read_tokens = learner.loss(rows)
    counts = [len(ids) + 1 for ids in base.encode([row["text"] for row in rows])]
    assert float(loss) == pytest.approx(nats.sum() / sum(counts), rel=1e-4)
    assert read_tokens > sum(counts) + len(rows)


def test_the_default_reads_names_but_no_identifiers() -> None:
    rows = text_rows(40)
    schema = ContextConfig(SET.declarations, min_count=5).fit(rows).schema
    readers = {reads: new_reader(reads, SET, schema) for reads in ("values", "names", "categories", "")}
    texts = {reads: None if read is None else read(rows[:1])[0] for reads, read in readers.items()}
    expected = {"values": "section: sea\nuser: sea:user00\nyear: 1900\n", "names": "section: sea\nyear: 1900\n"}
    assert texts == {**expected, "categories": "section: sea\n", "": None}
    decades = ContextConfig(DECADES.declarations).fit(rows).schema
    assert new_reader("categories", DECADES, decades) is None
    read_numbers = new_reader("names", DECADES, decades)
    assert read_numbers is not None
    assert read_numbers(rows[:1]) == ["year: 1900\n"]


def test_the_number_of_trained_values_is_that_of_the_model(base: Base) -> None:
    config = ContextConfig(SET.declarations, min_count=2, rank=3, shared_rank=5).fit(text_rows(50))
    per_rank = backbone_pretrained.values_per_rank(base.model)
    expected = backbone_pretrained.trained_values(config, per_rank)
    assert get_context_model(base.model, config).get_nb_trainable_parameters()[0] == expected
    sized = backbone_pretrained.fit_size(replace(config, shared_rank=0), "rank", expected, per_rank)
    goal = [backbone_pretrained.trained_values(replace(sized, rank=rank), per_rank) for rank in range(1, 9)]
    assert sized.rank == 1 + int(np.abs(np.array(goal) - expected).argmin())
    assert sized.alpha == sized.rank


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_separate_values_train_separate_loras(base: Base) -> None:
    learner = SeparateLearner(base, ["sea", "sun"], "section", 2)
    rows = text_rows(8)
    loss, _ = learner.loss(rows[1::2])
    torch.autograd.backward(loss)
    changed = {name for name, values in learner.module.named_parameters() if values.grad is not None}
    assert changed
    assert all("value1" in name for name in changed)
    with torch.no_grad():
        for name, values in learner.module.named_parameters():
            values.add_(0.1 * ("value1" in name and "lora_B" in name))
    nats, others = learner.nats(rows), learner.nats([{**row, "section": "sea"} for row in rows])
    assert (np.abs(nats - others) > 1e-3).tolist() == [row["section"] == "sun" for row in rows]


def test_names_have_vectors_from_the_embeddings_of_the_base(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that training never saw has the vector of its name."""
    monkeypatch.setattr(backbone_pretrained, "VECTOR_SIZE", 1)
    vectors = NameVectors(base, SET, text_rows(20))
    assert vectors.declarations == ("section_vector:vector",)
    sea, sun, new, same = (
        row["section_vector"] for row in vectors.add([{"section": name} for name in ("sea", "sun", "salt", "sea")])
    )
    assert sea == same
    assert sea == pytest.approx([-value for value in sun], abs=1e-5)
    assert new not in (sea, sun)


def test_dropped_contexts_are_unknown_and_mean() -> None:
    config = ContextConfig(SET.declarations, min_count=1).fit(text_rows(50))
    model = get_context_model(torch_model(), config)
    context = model.read_contexts(text_rows(40))
    torch.manual_seed(0)
    dropped = backbone_pretrained.drop_contexts(context, 0.5)
    is_dropped = dropped.numbers.isnan().squeeze(1)
    assert 5 < int(is_dropped.sum()) < 35
    assert not dropped.categories[is_dropped].any()
    assert torch.equal(dropped.categories[~is_dropped], context.categories[~is_dropped])
    assert backbone_pretrained.drop_contexts(context, 0.0) is context


def torch_model() -> Any:
    """Return a tiny model with random weights."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.LlamaConfig(vocab_size=20, **sizes)
    return transformers.AutoModelForCausalLM.from_config(config)


# ---- the order of rows ----


def ordered_plan() -> Plan:
    """Return a plan of two sets, four methods and two stages."""
    names = {DEFAULT: "context", "text": "lora", "separate": "separate", "poly": "poly"}
    methods = {name: StagedMethod(kind, learning_rates=RATES) for name, kind in names.items()}
    methods["candidate"] = StagedMethod("context", learning_rates=RATES, is_candidate=True)
    first = Stage("stages", "x", 100, ["a", "b"], list(names), [0, 1], tries_rates=True)
    second = replace(first, tries_rates=False, methods=[DEFAULT], best=2, seeds=[0], tokens=400)
    return Plan({"a": SET, "b": DECADES}, methods, {"s1": first, "s2": second})


def finish(plan: Plan, pairs: Sequence[tuple[StagedCase, int]], losses: dict[str, float]) -> dict[tuple[str, int], Any]:
    """Return finished rows with the losses of their methods, the lowest at the last learning rate."""
    return {
        (str(case), seed): {LOSS: losses.get(case.method_name, 2.0) - case.learning_rate, "processor_seconds": 60.0}
        for case, seed in pairs
    }


def test_the_most_informative_rows_come_first() -> None:
    plan = ordered_plan()
    queue = plan.queue({})
    names = [f"{case.set_name} {case.method_name} {case.learning_rate} {seed}" for case, seed in queue]
    assert names[:4] == ["a default 0.003 0", "a text 0.003 0", "b default 0.003 0", "b text 0.003 0"]
    assert names[4:6] == ["a candidate 0.003 0", "b candidate 0.003 0"]
    assert names[6:9] == ["a separate 0.003 0", "a poly 0.003 0", "b poly 0.003 0"]
    assert len(set(names[:23])) == 23 == 2 * 4 * 3 + 2 - 3
    assert [name.rpartition(" ")[2] for name in names[23:30]] == ["1"] * 7


def test_later_rows_have_the_best_learning_rate_and_the_best_methods() -> None:
    plan = ordered_plan()
    first = [(case, seed) for case, seed in plan.queue({}) if case.stage_name == "s1" and seed == 0]
    finished = finish(plan, first, {DEFAULT: 1.0, "candidate": 0.9, "text": 1.1})
    assert len(plan.queue(finished)) == len(plan.queue({})) - len(first) + 4
    rest = plan.queue(finished)
    assert {case.learning_rate for case, _ in rest if case.method_name != "candidate"} == {0.006}
    assert [case.method_name for case, _ in rest if case.stage_name == "s2" and case.set_name == "a"] == [
        DEFAULT,
        "candidate",
        "text",
    ]
    assert plan.chosen_rate("a", "candidate", finished) == 0.003


def cells(table: str) -> list[list[str]]:
    return [line.split(" | ") for line in table.splitlines()[2:]]


def test_the_table_has_the_best_learning_rate_of_each_method() -> None:
    """With a lower development loss at 0.0015, the figures are those of this rate."""
    rows = []
    for method, rate, loss, level in (
        (DEFAULT, 0.0015, 1.1, 1.6),
        (DEFAULT, 0.003, 1.2, 1.7),
        ("text", 0.003, 1.2, 1.5),
        ("default+values", 0.003, 1.2, 1.4),
    ):
        sizes = np.arange(20.0, 70.0)
        bits = study.group_sums(TextSums("k", sizes * level + np.sin(sizes), sizes))
        names = ("bits_per_byte", "dev_bits_per_byte", "cold_bits_per_byte")
        row = {"row": f"hotels smollm2-40k {method} {rate}", "seed": 0, LOSS: loss, "processor_seconds": 90.0}
        rows.append({**row, "sums": dict.fromkeys(names, bits)})
    default, text = cells(backbone_pages.stages(lambda *_: FinishedRows(rows)))
    assert default[:4] == ["| hotels", "40,000", "1", "`default`"]
    assert [cell[:4] for cell in default[4:8]] == ["1.60", "+0.1", "+0.1", ""]
    assert [cell[:4] for cell in text[3:8]] == ["`tex", "1.50", "", "", ""]
    assert text[-1] == "2 |"
    [candidate] = cells(backbone_pages.candidates(lambda *_: FinishedRows(rows)))
    assert candidate[2].startswith("-0.2")
    assert set(candidate[3:]) <= {"", " |"}
    assert backbone_pages.stages(lambda *_: FinishedRows([])) == backbone_pages.NOT_MEASURED


def test_the_time_of_a_row_is_that_of_similar_rows() -> None:
    plan = ordered_plan()
    cases = plan.cases()
    finished = {
        ("a s1 default 0.003", 0): {"processor_seconds": 10.0},
        ("a s1 text 0.003", 0): {"processor_seconds": 30.0},
    }
    seconds = {name: backbone_stages.estimate(plan, cases[name], finished) for name in cases}
    assert seconds["a s1 default 0.001"] == 10
    assert seconds["a s1 poly 0.001"] == 20
    assert seconds["b s1 poly 0.001"] == 20
    assert seconds["b s2 poly 0.001"] == 4


def test_every_row_of_the_study_has_valid_options() -> None:
    selected = backbone_stages.experiment(backbones.PLAN)
    assert {"hotels", "commits", "placenames", "sotu"} == set(backbones.PLAN.sets)
    assert {name for name, method in backbones.PLAN.methods.items() if not method.fits(DECADES)} == {
        "names",
        "separate",
        "head",
        "default+name-vectors",
        "default+rare-values",
    }
    for case, seed in [*backbones.PLAN.queue({}), *backbones.PLAN.queue({}, "stages-gpu")]:
        config = selected.config(study.Training(str(case), seed), 1)
        assert config.training.learning_rate == case.learning_rate
        assert str(case) in selected.baselines
        method = backbones.PLAN.methods[case.method_name]
        if method.kind == "context":
            ContextConfig(backbones.PLAN.sets[case.set_name].declarations, **dict(method.options))


def test_the_command_lists_the_rows(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--stages", "--list", "--data", str(data), "--out", str(data / "out"), "--only", "sotu * head *"]
    assert backbones.main(arguments) == 0
    assert "0 rows remain" in capsys.readouterr().out
    assert backbones.main([*arguments[:-1], "sotu * text *"]) == 0
    assert "sotu smollm2-40k text 0.003  seed 0" in capsys.readouterr().out.splitlines()[0]
