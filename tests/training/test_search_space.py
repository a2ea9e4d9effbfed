"""The space of a search: reading files, drawing options, and drawing only options that have an effect."""

from pathlib import Path

import optuna
import pytest

from factorcell.config import MODELS, Config
from factorcell.data.cache import prepare
from factorcell.errors import UserError
from factorcell.nn.language_model import LanguageModel
from factorcell.training.tuning import search_space
from factorcell.training.tuning.search_space import Range
from tests.small_runs import CONTEXT, ROWS

CONFIG = Config.of(context=CONTEXT, min_count=1, min_context_count=1)
EVERYTHING: search_space.Space = {
    **search_space.DEFAULT,
    "variable_size": (4, 8),
    "number_size": (4, 8),
    "min_context_count": (1, 50),
    "output_bias": ("low_rank", "one_hot", "low_rank+one_hot"),
    "decay": ("cosine", "none"),
}


def draw_config(number: int, ranges: search_space.Space, models: tuple[str, ...] = ()) -> tuple[Config, optuna.Trial]:
    """Return the config of a random trial, and the trial."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=number))
    trial = study.ask()
    return search_space.draw(trial, ranges, models, CONFIG), trial


def test_the_default_space_spans_the_values_of_the_paper() -> None:
    table = {
        "embedding_size": (150, 114, 120, 35, 40, 42, 50, 100, 200),
        "hidden_size": (110, 167, 180, 250, 200),
        "context_size": (2, 12, 3, 5, 8, 24, 20, 30),
        "rank": (12, 19, 2, 20, 9),
        "dropout_recurrent": (0.0, 0.5, 0.05, 0.01, 0.03),
    }
    for name, values in table.items():
        limits = search_space.DEFAULT[name]
        assert isinstance(limits, Range)
        assert (limits.low, limits.high) == (min(values), max(values)), name
    rate = search_space.DEFAULT["learning_rate"]
    assert isinstance(rate, Range)
    assert rate.low < 0.001 < rate.high
    search_space.check(search_space.DEFAULT, Config())


def test_ranges_and_choices_are_read(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        'seed = [1, 2]\nlayer_norm = [false, true]\ndecay = ["none"]\n[rank]\nlow = 4\nhigh = 64\nlog = true\n',
        encoding="utf-8",
    )
    space = search_space.read(path)
    assert space == {"seed": (1, 2), "layer_norm": (False, True), "decay": ("none",), "rank": Range(4, 64, log=True)}
    joined = search_space.load_space(path, {"hidden_size"})
    assert joined == {**{k: v for k, v in search_space.DEFAULT.items() if k != "hidden_size"}, **space}
    assert search_space.load_space(None, ()) == search_space.DEFAULT
    with pytest.raises(UserError, match=r"space.toml: rank is also set as an option"):
        search_space.load_space(path, {"rank"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rnk = [1]", "unknown option of a search 'rnk' (did you mean 'rank'?)"),
        ("unit = ['char']", "unknown option of a search 'unit'"),
        ("adapt = ['factor']", "unknown option of a search 'adapt'"),
        ("rank = 3", "rank: expected a list of choices or a range"),
        ("rank = []", "expected a list of choices or a range, {low = ..., high = ...}, got []"),
        ("rank = [[1]]", "got [[1]]"),
        ("rank = {low = 1}", "low and high must be numbers"),
        ("rank = {low = true, high = 3}", "low and high must be numbers"),
        ("learning_rate = {low = 0.1, high = inf}", "low and high must be numbers"),
        ("rank = {low = 1, high = 3, log = 1}", "log must be true or false"),
        ("rank = {low = 1, hihg = 3}", "unknown key of the range rank 'hihg' (did you mean 'high'?)"),
        ("rank = {low = 5, high = 5}", "rank ranges from 5 to 5; low must be below high"),
        ("dropout_input = {low = 0.0, high = 0.5, log = true}", "low must be below high and above 0"),
        ("rank = [", "not valid TOML"),
    ],
)
def test_invalid_files_of_a_space_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        search_space.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    with pytest.raises(UserError, match="there is no such file"):
        search_space.read(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"rank": Range(-1, 4)}, "rank is -1; it must be at least 0"),
        ({"rank": Range(1, 4.5)}, "rank is 4.5; it must be of type int"),
        ({"rank": (4, "8")}, "rank is '8'; it must be of type int"),
        ({"rank": (True,)}, "rank is True; it must be of type int"),
        ({"dropout_output": Range(0.0, 1.0)}, "dropout_output is 1; it must be at least 0 and below 1"),
        ({"decay": ("cosine", "lineal")}, "did you mean 'linear'?"),
        ({"output_bias": ("low_rank+one_hit",)}, "did you mean 'one_hot'?"),
        ({"output_bias": (1,)}, "output_bias is 1; it must be a list of names"),
        ({"hiden_size": (1,)}, "did you mean 'hidden_size'?"),
    ],
)
def test_invalid_values_of_a_space_are_refused(ranges: search_space.Space, message: str) -> None:
    with pytest.raises(UserError) as caught:
        search_space.check(ranges, Config())
    assert message in str(caught.value)


def test_draws_lie_in_the_space_and_determine_the_config() -> None:
    models = tuple(MODELS)
    drawn_models = set()
    for number in range(40):
        config, trial = draw_config(number, EVERYTHING, models)
        params = trial.params
        assert search_space.with_drawn_options(CONFIG, params) == config
        assert search_space.with_drawn_options(CONFIG, dict(reversed(params.items()))) == config
        drawn_models.add(params["model"])
        assert set(params) - {"model"} == {name for name in EVERYTHING if search_space.has_effect(name, config)}
        for name, value in params.items():
            if name == "model":
                continue
            values = EVERYTHING[name]
            if isinstance(values, Range):
                assert isinstance(value, (int, float))
                assert values.low <= value <= values.high
                assert isinstance(value, int) == isinstance(values.low, int)
                assert vars(trial.distributions[name])["log"] == values.log
            else:
                assert value in values
    assert drawn_models == set(models)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bias", ["low_rank", "one_hot"])
@pytest.mark.parametrize("context", [CONTEXT, ()])
def test_an_option_is_drawn_only_if_it_changes_the_model(model: str, bias: str, context: tuple[str, ...]) -> None:
    config = CONFIG.with_options(context=context, model=model)
    if config.model.output_bias:
        config = search_space.with_drawn_options(config, {"output_bias": bias})
    corpus = prepare(ROWS, config)

    def shapes(changes: Config) -> dict[str, tuple[int, ...]]:
        built = LanguageModel(changes, len(corpus.tokenizer), corpus.schema)
        return {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}

    for name in ("rank", *search_space.CONTEXT_SIZES, "hidden_size", "embedding_size"):
        first, second = (shapes(search_space.with_drawn_options(config, {name: value})) for value in (3, 5))
        if name in search_space.CONTEXT_SIZES and model == "softmaxbias" and bias == "one_hot":
            first = second  # the encoder exists, but no part of the model reads its vector
        assert search_space.has_effect(name, config) == (first != second), name
    assert search_space.has_effect("output_bias", config) == bool(context and config.model.output_bias)
    assert search_space.has_effect("learning_rate", config)
