"""Rules for options: they are valid for every table, and smaller tables get smaller models and batches."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorcell.config import Config, HuggingFaceOptions
from factorcell.data.preparation import prepare
from factorcell.options.limits import AUTOMATIC_OPTIONS, PRESETS, SMALL_DATA_DEFAULTS
from factorcell.training import rules
from factorcell.training.rules import TableFacts
from tests.small_runs import CONTEXT, ROWS

TABLES = st.builds(
    TableFacts,
    targets=st.integers(1, 10**10),
    vocabulary=st.integers(3, 10**6),
    is_character_level=st.booleans(),
    max_values=st.integers(0, 10**6),
    texts_per_value=st.floats(0, 1e6),
    dev_targets=st.integers(0, 10**9),
    has_users=st.booleans(),
)


@settings(deadline=None)
@given(TABLES, st.sampled_from(PRESETS))
def test_every_table_has_valid_options(facts: TableFacts, preset: str) -> None:
    options = rules.default_options(facts, rules.default_passes(facts, preset))
    config = Config.of(**options).to_dict()
    names = {name for names in AUTOMATIC_OPTIONS.values() for name in names}
    assert set(options) <= names
    assert names - set(options) <= {"ngram_mixture"}  # the plan decides on the mixture
    values = {name: value for section in config.values() for name, value in section.items()}
    assert {name: values[name] for name in options} == options


@given(TABLES)
def test_larger_tables_get_fewer_passes(facts: TableFacts) -> None:
    larger = TableFacts(**{**vars(facts), "targets": facts.targets * 10})
    for preset in PRESETS:
        assert rules.default_passes(larger, preset) <= rules.default_passes(facts, preset)
        assert (
            rules.default_passes(larger, preset) * larger.targets >= rules.default_passes(facts, preset) * facts.targets
        )
    passes = [rules.default_passes(facts, preset) for preset in PRESETS]
    assert passes == sorted(passes)


def test_quick_trainings_make_a_third_and_the_best_twice_the_passes_of_good_ones() -> None:
    facts = TableFacts(10**7, 100, is_character_level=True)
    quick, good, best = (rules.default_passes(facts, preset) for preset in PRESETS)
    assert (quick, best) == pytest.approx((good / 3, 2 * good), rel=0.02)  # passes have two digits


@pytest.mark.parametrize("is_character_level", [False, True])
def test_models_grow_with_the_number_of_targets(is_character_level: bool) -> None:
    facts = TableFacts(20_000, 10_000, is_character_level)
    sizes = [rules.default_options(facts, passes) for passes in (0.1, 1, 10, 100, 1000, 10_000)]
    for smaller, larger in itertools.pairwise(sizes):
        for name in ("embedding_size", "hidden_size", "dropout_recurrent", "dropout_output"):
            assert smaller[name] <= larger[name]


def test_small_tables_get_small_batches() -> None:
    tables = [TableFacts(targets, 20, is_character_level=False) for targets in (1000, 12_000, 50_000, 10**6)]
    assert [rules.default_options(facts, 12.0)["batch_tokens"] for facts in tables] == [
        100,
        240,
        1000,
        1000,
    ]
    assert rules.default_options(tables[1], 0.5)["batch_tokens"] == 240
    assert rules.default_options(TableFacts(6000, 80, is_character_level=True), 40.0)["batch_tokens"] == 400


def test_batches_on_a_gpu_are_larger_for_tables_with_many_targets() -> None:
    sizes = {}
    for targets in (1000, 10**6, 2 * 10**6, 10**8):
        facts = TableFacts(targets, 20, is_character_level=False)  # at most 12 passes
        sizes[targets] = rules.gpu_batch_tokens(facts, 12.0)
    assert sizes == {1000: 100, 10**6: 5000, 2 * 10**6: 6000, 10**8: 6000}
    facts = TableFacts(10**6, 20, is_character_level=False)
    assert rules.gpu_batch_tokens(facts, 2.0) == 1000


def test_facts_describe_the_table() -> None:
    data = Config.of(context=CONTEXT, min_count=1, min_context_count=1)
    corpus = prepare(ROWS, data)
    dev = prepare(ROWS[:2], data, tokenizer=corpus.tokenizer, schema=corpus.schema)
    facts = TableFacts.of(corpus, dev)
    assert (facts.vocabulary, facts.is_character_level) == (len(corpus.tokenizer), False)
    assert facts.targets == sum(len(str(row["text"]).split()) + 1 for row in ROWS)
    assert facts.dev_targets == sum(len(str(row["text"]).split()) + 1 for row in ROWS[:2])
    assert facts.max_values == 3  # two cities and the unknown value
    assert facts.texts_per_value == pytest.approx(10 / 3)
    assert TableFacts.of(prepare(ROWS, Config.of(tokenizer="char")), dev).is_character_level
    assert facts.has_names
    rare = data.with_options(min_context_count=50)
    assert TableFacts.of(prepare(ROWS, rare), dev).has_names  # the numbers
    assert not TableFacts.of(prepare(ROWS, rare.with_options(context=("city", "stars"))), dev).has_names


def test_models_of_characters_with_users_can_learn_new_users() -> None:
    """Long trainings add a FactorCell of high rank, and the unknown user is trained even if no user is rare."""
    for texts_per_value in (20.0, 2000.0):
        facts = TableFacts(10**6, 100, True, max_values=500, texts_per_value=texts_per_value, has_users=True)
        for passes, rank in ((1.0, 4), (5.0, 4), (6.0, 12), (20.0, 12), (21.0, 50)):
            options = rules.default_options(facts, passes)
            assert options["adapt"] == (("concat",) if rank == 4 else ("concat", "factor"))
            assert (options["rank"], options["dropout_context"]) == (rank, 0.2)
            assert options["output_bias"] == ()
            assert options["layer_norm"]
    data = Config.of(user="city", min_count=1, min_user_count=1, tokenizer="char")
    corpus = prepare(ROWS, data)
    assert TableFacts.of(corpus, corpus).has_users
    assert not TableFacts.of(*[prepare(ROWS, Config.of(context=CONTEXT, min_count=1))] * 2).has_users


@pytest.mark.parametrize("train_base", [False, True])
def test_a_pretrained_base_reads_the_names_of_categories(train_base: bool) -> None:
    backbone = HuggingFaceOptions(base="./base", train_base=train_base)
    facts = TableFacts(10**6, 100, False, has_names=True)
    options = rules.transformer_options(backbone, facts)
    assert {options["dropout_input"], options["dropout_output"]} == {0.0}
    assert (options["adapt"], options["output_bias"]) == (("names", "factor"), ())
    without_names = dataclasses.replace(facts, has_names=False)
    assert rules.transformer_options(backbone, without_names)["adapt"] == ("factor",)
    assert "adapt" not in rules.transformer_options(HuggingFaceOptions(architecture="llama"), facts)


def test_fine_tuning_on_few_texts_uses_small_batches() -> None:
    sizes = [
        rules.batch_tokens(targets, SMALL_DATA_DEFAULTS["epochs"], rules.MIN_FINETUNING_STEPS, 2000)
        for targets in (10, 1000, 10_000, 10**6)
    ]
    assert sizes == [100, 100, 333, 2000]
    assert rules.batch_tokens(10**6, 1.0, rules.MIN_FINETUNING_STEPS, 50) == 50
