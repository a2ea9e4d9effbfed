"""The ONNX graphs of a recurrent run give the log probabilities of the run in ONNX Runtime."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import torch

from factorcell.commands.cli.main import main
from factorcell.completion.completer import Completer
from factorcell.completion.online import User, learn_one
from factorcell.data.columns.schema import ContextSchema
from factorcell.data.corpus import Corpus
from factorcell.io import files
from factorcell.runs.run import Run
from tests.small_runs import ROWS, make_run

pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

CLOSE, GRAPHS = 1e-5, ("fold.onnx", "step.onnx")
# Rows with a column of each kind, whose cells may be empty.
TAGS = ["a b", "b", "", "c a", "a"] * 2
VECTORS = [[1, 2, 3], [0, 1, 2], None, [1, 1, 1], [3, 2, 1]] * 2
COLUMNS = zip(ROWS, TAGS, VECTORS, ["ann", "bob"] * 5, range(10), strict=True)
WIDE: list[dict[str, Any]] = [
    {**row, "tags": tags, "size": vector, "user": user, "at": f"2026-11-21T0{hour}:30"}
    for row, tags, vector, user, hour in COLUMNS
]
EVERY_KIND = ("city", "stars", "lat:number", "at:hour", "tags:text", "size:vector")
MISSING = {"text": "cold sand", "city": None, "stars": None, "lat": None, "tags": None, "size": None, "at": None}
TABLE = [*WIDE[:5], MISSING, {**WIDE[0], "city": "Rome", "lat": -12.5, "tags": "never seen"}]

Arrays = dict[str, Any]


class Graphs:
    """The graphs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.fold, self.step = (onnxruntime.InferenceSession(folder / name) for name in GRAPHS)

    @staticmethod
    def call(session: Any, inputs: Arrays) -> Arrays:
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))

    def start(self, contexts: Arrays, rows: Any) -> Arrays:
        """Return the inputs of the graph step before the first token of texts whose contexts are `rows`."""
        inputs = self.call(self.fold, contexts)
        states = {name: part[rows] for name, part in inputs.items() if name.startswith(("hidden_", "memory_"))}
        return {**inputs, **states, "context": np.array(rows)}

    def read(self, inputs: Arrays, tokens: Any) -> tuple[Any, Arrays]:
        """Read one token of each text; return the log probabilities and the next inputs."""
        outputs = self.call(self.step, {**inputs, "tokens": np.array(tokens, dtype=np.int64)})
        log_probs = outputs.pop("log_probabilities")
        return log_probs, inputs | {name.removeprefix("next_"): part for name, part in outputs.items()}


def contexts_of(run: Run, corpus: Corpus) -> Arrays:
    """Return the inputs of the graph fold for the contexts of all texts."""
    context = corpus.context(np.arange(len(corpus)))
    inputs = {"categories": context.categories, "numbers": context.numbers}
    inputs |= {f"vector_{number}": vectors for number, vectors in enumerate(context.vectors)}
    inputs |= {f"words_{number}": words.padded() for number, words in enumerate(context.words)}
    if run.config.data.user:
        inputs["user_vector"] = torch.full((len(corpus), run.config.model.variable_size), torch.nan)
    return {name: part.numpy() for name, part in inputs.items()}


def graph_nats(run: Run, folder: Path, rows: list[dict[str, Any]]) -> list[list[float]]:
    """Return the nats of the targets of each text, all read together in their contexts by the graphs."""
    corpus, graphs = run.prepare(rows), Graphs(folder)
    batch, texts = corpus.batch(np.arange(len(corpus))), np.arange(len(corpus))
    tokens = batch.tokens.clamp(min=0).numpy()
    inputs, steps = graphs.start(contexts_of(run, corpus), texts), tokens.shape[1] - 1
    nats = np.zeros((len(texts), steps))
    for number in range(steps):
        log_probs, inputs = graphs.read(inputs, tokens[:, number])
        nats[:, number] = -log_probs[texts, tokens[:, number + 1]]
    return [row[mask].tolist() for row, mask in zip(nats, batch.mask().numpy(), strict=True)]


def run_nats(run: Run, rows: list[dict[str, Any]]) -> list[list[float]]:
    return [[token["nats"] for token in row["tokens"]] for row in run.score_rows(rows, tokens=True, unknown="group")]


RUNS: dict[str, dict[str, Any]] = {
    "every kind of column and bias": {
        "context": EVERY_KIND,
        "adapt": ("concat", "factor", "scale"),
        "output_bias": ("low_rank", "low_rank_each", "one_hot", "hash"),
        "layer_norm": True,
        "layers": 2,
    },
    "control codes": {"context": ("city", "tags:text", "lat:number"), "adapt": ("prefix", "concat"), "cell": "gru"},
    "no context": {"context": (), "cell": "tanh", "layer_norm": True},
}


@pytest.mark.parametrize("name", RUNS)
def test_graphs_give_the_log_probabilities_of_the_run(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=WIDE, **RUNS[name])
    run.export(tmp_path / "onnx", to="onnx")
    for rows in (TABLE, TABLE[-1:]):  # many texts and contexts, and one
        for actual, expected in zip(graph_nats(run, tmp_path / "onnx", rows), run_nats(run, rows), strict=True):
            assert actual == pytest.approx(expected, abs=CLOSE)


def test_the_command_writes_graphs_and_an_example_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", rows=WIDE, context=("city", "tags:text", "size:vector"), output_bias=("hash",))
    run.save_weights({})
    assert main(["export", str(run.folder), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    monkeypatch.chdir(tmp_path / "onnx")
    assert {path.name for path in Path().iterdir()} == {*GRAPHS, "model.json", "schema.json", "README.md"}
    assert ContextSchema.load(Path("schema.json")) == run.schema
    model = files.read_versioned("model.json", 1)
    assert (model["unknown"], model["start"], model["end"]) == tuple(run.tokenizer.specials)
    assert model["tokens"] == [*run.tokenizer.tokens]
    text = "The sea, don't -- 3.50!"
    assert [match.group() for match in regex.finditer(model["pattern"], text.lower())] == run.tokenizer.split(text)
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), names)
    conditioning = run.model.condition(run.read([""], [{}], unknown="expected").context(np.array([0])))
    _, state = run.model.step(torch.tensor([run.tokenizer.specials.start]), conditioning)
    expected, _ = run.model.step(torch.tensor([3]), conditioning, state)
    np.testing.assert_allclose(names["log_probabilities"], expected.detach().numpy(), atol=CLOSE)
    assert capsys.readouterr().out == f"{run.tokenizer.tokens[int(expected.argmax())]}\n"


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Graphs]:
    """A run of characters and users that reads the names of cities, and its graphs."""
    folder, users = tmp_path_factory.mktemp("letters"), {"user": "user", "min_user_count": 1}
    model: dict[str, Any] = {"context": ("city",), "adapt": ("names", "factor"), "tokenizer": "char", "cell": "lstm"}
    run = make_run(folder / "run", rows=WIDE, training=users, **model)
    run.export(folder / "onnx", to="onnx")
    facts = files.read_versioned(folder / "onnx" / "model.json", 1)
    assert (facts["names"], facts["user"], facts["pattern"]) == (["city"], "user", None)
    return run, Graphs(folder / "onnx")


def test_the_texts_of_a_step_share_a_context_or_have_their_own(letters: tuple[Run, Graphs]) -> None:
    run, graphs = letters
    corpus, rows, tokens = run.prepare(WIDE[:2]), [1, 0, 1, 1], [3, 4, 4, 5]
    together, _ = graphs.read(graphs.start(contexts_of(run, corpus), rows), tokens)
    for log_probs, row, token in zip(together, rows, tokens, strict=True):
        alone, _ = graphs.read(graphs.start(contexts_of(run, run.prepare(WIDE[row : row + 1])), [0]), [token])
        np.testing.assert_allclose(log_probs, alone[0], atol=CLOSE)
    assert not np.allclose(together[1], together[2], atol=0.01)  # one token in two contexts


@pytest.mark.parametrize("is_learned", [False, True])
def test_names_and_the_vector_of_a_user_are_read(letters: tuple[Run, Graphs], is_learned: bool) -> None:
    (run, graphs), context, text = letters, {"city": "Oslo"}, "cold"
    user = learn_one(run, User.new(run), "cold sand") if is_learned else User.new(run)
    contexts = contexts_of(run, run.read([""], [context])) | {"user_vector": user.vector[None]}
    start, end = run.tokenizer.specials.start, run.tokenizer.specials.end
    name, tokens = (run.tokenizer.encode(run.tokenizer.split(part)) for part in ("city: Oslo\n", text))
    inputs, total = graphs.start(contexts, [0]), 0.0
    for token in (start, *name):
        _, inputs = graphs.read(inputs, [token])
    for token, target in zip((start, *tokens), (*tokens, end), strict=True):
        log_probs, inputs = graphs.read(inputs, [token])
        total += float(log_probs[0, target])
    expected = Completer(run).log_probabilities("", [text], user, context)
    assert [total] == pytest.approx(expected, abs=len(tokens) * CLOSE)
