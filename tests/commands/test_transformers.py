"""Every command works with a Transformer, pretrained or new, or refuses in one line."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from factorcell import Completer, Run
from factorcell.commands.cli.main import main
from factorcell.completion import User, learn_one
from factorcell.service.engine import Service
from factorcell.service.http.application import Settings, Site, application
from factorcell.service.learning import ServedModel
from factorcell.service.stores.store import open_store
from factorcell.training.proximal import PARTS, part_of
from factorcell.training.trainer import Trainer
from tests.checkpoints import checkpoints_every_step
from tests.pretrained_models import MAX_POSITIONS, write_pretrained

frequent_checkpoints = checkpoints_every_step()

TEXTS = ("the sea is cold", "sun and sand 😀", "", "a cold  sea", "the sunniest étés")
ROWS = [
    {"text": text, "city": city, "user": user, "time": f"2026-01-0{1 + number}T10:00"}
    for number, text in enumerate(TEXTS)
    for city in ("Oslo", "Nice")
    for user in "AB"
]
TEXT_OPTIONS = "--max-tokens 24 --min-context-count 1 --min-user-count 1 --min-text-users 1"
OPTIONS = "--context-size 3 --variable-size 3 --rank 2 --epochs 2 --evaluations 1 --precision float32 --threads 1"
CONTEXT = "--context city --user user --time time"
RUNS = {
    "pretrained": "--base ./llama",
    "trained": "--base ./gpt2 --train-base --prefix-vectors 2 --adapt factor --adapt concat",
    "chosen": "--base ./llama --target-modules q_proj --target-modules v_proj --precision bfloat16 "
    "--adapt factor --output-bias low_rank",
    "codes": "--base ./llama --adapt prefix --output-bias low_rank",
    "new": "--architecture llama --layers 1 --hidden-size 16 --tokenizer bpe --max-vocabulary 280",
    "letters": "--architecture gpt2 --layers 1 --hidden-size 8 --tokenizer char --min-count 1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, two pretrained models, and runs with all of them and with a new Transformer."""
    path = tmp_path_factory.mktemp("transformers")
    with (path / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    lists = [
        {
            "id": f"u{number}",
            "reference": text,
            "hypotheses": [{"text": text, "acoustic": -2.0}, {"text": "a sea", "acoustic": -1.0 - 2 * number}],
        }
        for number, text in enumerate(TEXTS[:2])
    ]
    (path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lists), encoding="utf-8")
    write_pretrained(path / "llama", TEXTS)
    write_pretrained(path / "gpt2", TEXTS, "gpt2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for name, options in RUNS.items():
            words = f"train texts.csv --out {name} {options} {CONTEXT} {TEXT_OPTIONS} {OPTIONS}"
            assert main(words.split()) == 0
    return path


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("name", ["pretrained", "trained", "chosen", "new"])
@pytest.mark.parametrize(
    "words",
    [
        "evaluate RUN texts.csv --by city",
        "classify RUN texts.csv --target city",
        "score RUN texts.csv --tokens",
        "generate RUN --each city --number 1 --method greedy --max-tokens 5",
        "generate RUN --each city --number 2 --prompt the --max-tokens 5",
        "generate RUN --each city --number 1 --method beam --max-tokens 5",
        "complete RUN the --context city=Oslo --seconds 0.1 --explain",
        "explain RUN --between city=Oslo city=Nice --text sea",
        "contexts RUN --near Oslo",
        "rescore RUN lists.jsonl --share 0.5",
        "report RUN --out RUN.html",
    ],
)
def test_a_command_works(words: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words.replace("RUN", name).split()) == 0
    error = capfd.readouterr().err
    assert not re.search(r"it/s\]|Warning|\btransformers\b|%\|", error)


@pytest.mark.parametrize(
    "words",
    [
        "complete pretrained the --history sea;sand --seconds 0.1",
        "complete codes the --seconds 0.1",
        "baseline ngram texts.csv --like pretrained --out ngram",
        "evaluate pretrained texts.csv --baseline codes",
        "mix pretrained ngram --dev texts.csv --by city --out mix",
        "evaluate mix texts.csv",
        "tune-online chosen texts.csv --optimizer sgd --every 10 --rows-per-user 2 --seconds 0.1",  # it changes the run
        "replay pretrained texts.csv --out replay --every 8 --seconds 0.1",
        "complete letters the --typos 1 --seconds 0.2",
        "advise texts.csv --tokenizer bpe --context city",
        f"compare texts.csv --dev texts.csv --out compare --models unadapted factorcell --base ./llama "
        f"--context city --target city {TEXT_OPTIONS} {OPTIONS}",
        "report compare --out compare.html",
        f"tune texts.csv --out tune --trials 2 --base ./llama --context city {TEXT_OPTIONS} --epochs 1 "
        "--precision float32",
        f"tune texts.csv --out tune-new --trials 1 --architecture gpt2 --layers 1 --tokenizer char "
        f"--context city {TEXT_OPTIONS} --epochs 1 --precision float32",
    ],
)
def test_a_command_that_writes_works(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 0
    error = capfd.readouterr().err
    assert not any(word in error for word in ("it/s]", "Warning", "%|"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("complete pretrained the --typos 1", "typos: expected a tokenizer of characters, got pretrained"),
        ("mix pretrained new --dev texts.csv --out mixed", "cannot mix models with different vocabularies"),
        (f"generate pretrained --max-tokens {MAX_POSITIONS + 9} --min-tokens {MAX_POSITIONS + 9}", "expected at least"),
        ("finetune pretrained texts.csv --out tuned --train backbone", "has no part 'backbone' that can be trained"),
        ("finetune trained texts.csv --out tuned --train projection", "has no part 'projection'"),
    ],
)
def test_a_command_refuses(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("factorcell: ")


PARTS_OF_RUNS = {
    "pretrained": ("context",),
    "chosen": ("context", "output_bias"),
    "trained": ("embedding", "context", "backbone", "output_bias"),
    "new": tuple(PARTS),
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in PARTS_OF_RUNS.items() for part in parts])
def test_fine_tuning_changes_only_the_selected_part(name: str, part: str, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    words = f"finetune {name} texts.csv --out {out} --train {part} --epochs 1 --l1 0.0001 --threads 1"
    assert main(words.split()) == 0
    before, after = Run.open(name).model.saved_tensors(), Run.open(out).model.saved_tensors()
    changed = {key for key, value in after.items() if not np.array_equal(before[key].numpy(), value.numpy())}
    assert changed
    (facts,) = json.loads((out / "training.json").read_text())["finetuned"]["moved"]
    assert facts["part"] == part
    assert 0 < facts["moved"] <= facts["values"]
    assert {part_of(key) for key in changed} == {part}


@pytest.mark.parametrize("name", ["pretrained", "new"])
def test_a_user_learned_online_changes_suggestions_and_log_probabilities(name: str) -> None:
    run = Run.open(name)
    completer, user = Completer(run, seconds=2), User.new(run)
    learned = learn_one(run, user, "the sea is cold")
    assert not np.array_equal(user.vector, learned.vector)
    assert (user.text_count, learned.text_count) == (0, 1)
    (before,), (after,) = (completer.log_probabilities("the", ["the sea is cold"], each) for each in (user, learned))
    assert after != before
    assert completer.complete("the", learned, k=2)


@pytest.mark.parametrize("name", ["pretrained", "new"])
def test_the_service_completes_and_learns(name: str, tmp_path: Path) -> None:
    service = Service(ServedModel(Run.open(name)), open_store(f"sqlite:///{tmp_path / 'users.db'}"))
    with TestClient(application(Site(service, Settings(deadline=0.2))), base_url="http://127.0.0.1") as client:
        assert client.post("/v1/complete", json={"query": "the", "user": "ann"}).status_code == 200
        for text in ("the sea is cold", "sun and sand"):
            response = client.post("/v1/accept", json={"text": text, "user": "ann", "context": {"city": "Oslo"}})
            assert response.status_code == 200, response.text
        results = client.post("/v1/complete", json={"query": "the", "user": "ann"}).json()["results"]
        assert "the sea is cold" in [result["text"] for result in results]
    service.close()
    url = f"sqlite:///{tmp_path / 'users.db'}"
    assert main(["users", "list", "--store", url]) == 0
    assert main(["users", "show", "ann", "--store", url]) == 0
    assert main(["users", "migrate", "--store", url, name]) == 0
    assert main(["users", "delete", "ann", "--store", url]) == 0


def test_a_run_is_opened_from_another_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nats = Run.open("pretrained").score(ROWS).tolist()
    (tmp_path / "llama").mkdir()  # an architecture has the name of a folder
    monkeypatch.chdir(tmp_path)
    assert Run.open(folder / "pretrained").score(ROWS).tolist() == nats
    assert Run.open(folder / "new").score_rows(ROWS)


def test_a_stopped_training_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = f"train texts.csv --out {tmp_path / 'run'} --base ./llama {CONTEXT} {TEXT_OPTIONS} {OPTIONS}"
    step = Trainer.step

    def stop_after_one(trainer: Trainer, batch: Any) -> None:
        if trainer.progress.step == 1:
            raise KeyboardInterrupt
        step(trainer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop_after_one)
        assert main(words.split()) != 0
    assert main([*words.split(), "--resume"]) == 0
    weights, whole = (Run.open(path).model.saved_tensors() for path in (tmp_path / "run", "pretrained"))
    assert all(np.array_equal(value, weights[key]) for key, value in whole.items())


def test_the_model_card_names_the_base_and_its_digest() -> None:
    card = Path("pretrained/README.md").read_text(encoding="utf-8")
    options = Run.open("pretrained").config.backbone
    assert "of which" in card
    assert options.base_digest in card  # type: ignore[attr-defined]
    assert "hidden\\_size" not in card
    assert "hidden\\_size 16" in Path("new/README.md").read_text(encoding="utf-8")
