"""Unusable pretrained models, altered runs and texts that are too long are refused in one line, without the network."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from factorcell import UserError
from factorcell.commands.cli.main import main
from factorcell.io import files, pretrained
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.pretrained_models import write_pretrained, write_tokenizer

TEXTS = ("the sea is cold", "sun and sand", "a cold sea")
OPTIONS = (
    "--context city --user user --max-tokens 20 --min-context-count 1 --min-user-count 1 --context-size 2 "
    "--variable-size 2 --rank 1 --epochs 0.5 --evaluations 1 --precision float32 --threads 1"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a pretrained model, an encoder, and runs with pretrained and with new tokenizers."""
    path = tmp_path_factory.mktemp("pretrained")
    files.write_rows(path / "texts.jsonl", [{"text": text, "city": c, "user": c} for text in TEXTS for c in "ab"] * 4)
    write_pretrained(path / "base", TEXTS)
    write_tokenizer(path / "bert", TEXTS, 300)
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=300)
    transformers.BertModel(config).save_pretrained(path / "bert")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(f"train texts.jsonl --out run --base ./base {OPTIONS}".split()) == 0
        new = "--architecture gpt2 --layers 1 --hidden-size 8 --tokenizer bpe --max-vocabulary 260"
        assert main(f"train texts.jsonl --out new {new} {OPTIONS}".split()) == 0
    return path


@pytest.fixture
def folder(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in a process that cannot use the network."""
    path = Path(shutil.copytree(source, tmp_path / "copy"))
    for name in ("run", "new"):
        config = path / name / "config.json"
        content = files.read_json(config)
        if "base" in content["backbone"] and name == "run":
            content["backbone"]["base"] = str(path / "base")
            files.write_json(config, content)
    monkeypatch.chdir(path)

    def refuse(*_arguments: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return path


def refusal(words: str | list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command, after checking that it is one line."""
    capfd.readouterr()
    assert main(words.split() if isinstance(words, str) else words) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("factorcell: ")
    return lines[0]


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "base" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def remove_tokenizer(folder: Path) -> None:
    for path in (folder / "base").glob("tokenizer*"):
        path.unlink()


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


WEIGHTS, TOKENIZER, CONFIG = "base/model.safetensors", "base/tokenizer.json", "base/config.json"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut weights": (lambda folder: cut(folder / WEIGHTS), "base: cannot be loaded"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "expected weights in files model*.safetensors"),
    "empty weights": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "base: cannot be loaded"),
    "a huge header": (lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 8 + b"{}"), "base: cannot be loaded"),
    "a damaged tokenizer": (lambda folder: cut(folder / TOKENIZER), "the tokenizer of the model cannot be read"),
    "a nested tokenizer": (lambda folder: (folder / TOKENIZER).write_text("[" * 10_000), "tokenizer"),
    "an empty tokenizer": (lambda folder: (folder / TOKENIZER).write_text("{}"), "tokenizer"),
    "no tokenizer": (remove_tokenizer, "tokenizer"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), "config.json"),
    "a damaged config": (lambda folder: cut(folder / CONFIG), "cannot be read"),
    "a list as config": (lambda folder: (folder / CONFIG).write_text("[]"), "cannot be read"),
    "an unknown architecture": (lambda folder: change_config(folder, model_type="elephant"), "cannot be read"),
    "code in the folder": (
        lambda folder: change_config(
            folder, model_type="elephant", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
        ),
        "cannot be read",
    ),
    "a billion layers": (lambda folder: change_config(folder, num_hidden_layers=10**9), "num_hidden_layers"),
    "huge vectors": (lambda folder: change_config(folder, hidden_size=10**9), "GiB of memory"),
    "other sizes": (lambda folder: change_config(folder, hidden_size=32), "base"),
    "logits that are not linear": (
        lambda folder: change_config(folder, final_logit_softcapping=3.0),
        "models with final_logit_softcapping are not supported",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_base_is_refused(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGE[name]
    (folder / "base" / "code.py").write_text("open('executed', 'w')")
    damage(folder)
    assert message in refusal(f"train texts.jsonl --out other --base ./base {OPTIONS}", capfd)
    assert not (folder / "executed").exists()


@pytest.mark.parametrize(
    "architecture", ["gpt2", "llama", "qwen2", "gemma", "gpt_neox", "opt", "mistral", "bert", "mbart"]
)
def test_a_folder_without_the_files_of_a_tokenizer_is_refused(architecture: str, tmp_path: Path) -> None:
    """For some architectures, transformers makes a tokenizer of special tokens, and every text is empty."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
    with pytest.raises(UserError, match="tokenizer"):
        pretrained.read_tokenizer(pretrained.find_source(str(tmp_path)))


@pytest.mark.parametrize(
    ("remaining", "message"),
    [
        (("config.json", "model.safetensors"), "expected a tokenizer with a tokenizer.json, got one without tokens"),
        (("config.json", "tokenizer.json", "tokenizer_config.json"), "expected weights in files model*.safetensors"),
        (("config.json",), "expected weights in files model*.safetensors"),
        (("tokenizer.json", "model.safetensors"), "expected a model with a config.json"),
        ((), "expected a model with a config.json"),
    ],
)
def test_missing_files_of_a_base_are_reported_before_the_table_is_read(
    remaining: tuple[str, ...], message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_pretrained(folder / "gpt2", TEXTS, "gpt2")
    for path in (folder / "gpt2").iterdir():
        if path.name not in remaining:
            path.unlink()
    with (folder / "texts.jsonl").open("a") as file:
        file.write("not JSON\n")
    assert message in refusal(f"train texts.jsonl --out other --base ./gpt2 {OPTIONS}", capfd)
    assert not (folder / "other" / "config.json").exists()


GGUF_FILES = {
    "empty": b"",
    "no header": b"text" * 9,
    "zeros": b"GGUF" + bytes(20),
    "huge counts": b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16 + bytes(64),
    "a cut header": b"GGUF\x03\x00",
}


@pytest.mark.parametrize("name", GGUF_FILES)
def test_a_damaged_gguf_file_is_refused(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.gguf").write_bytes(GGUF_FILES[name])
    assert "model.gguf" in refusal(f"train texts.jsonl --out other --base model.gguf {OPTIONS}", capfd)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--base ./bert", "expected a causal language model"),
        ("--architecture bert --hidden-size 8 --tokenizer bpe", "expected a causal language model"),
        ("--base ./nowhere", "no such file or folder"),
        ("--base ./base --target-modules elephant", "target_modules: expected some of down_proj"),
        ("--base ./base --target-modules lm_head", "target_modules: expected some of down_proj"),
        ("--base ./base --max-tokens 1000", "max_tokens: expected at most 64"),
        ("--base ./base --prefix-vectors 60", "max_tokens: expected at most 4"),
        ("--architecture ./base", "expected a causal language model of transformers, such as llama, gpt2 or qwen2"),
        ("--architecture lama", "did you mean 'llama'?"),
        ("--base ./base --backbone recurrent", "base requires backbone huggingface, got recurrent"),
        ("--architecture lama --backbone recurrent", "architecture requires backbone huggingface, got recurrent"),
        ("--base ./base --architecture llama", "expected either base, a pretrained model, or architecture"),
        ("--backbone huggingface", "expected either base, a pretrained model, or architecture"),
        ("--base=", "expected either base, a pretrained model, or architecture"),
        ("--architecture=", "expected either base, a pretrained model, or architecture"),
        ("--base texts.jsonl", "expected a folder"),
        ("--base ./texts.jsonl", "expected a folder with a model, or a GGUF file"),
        ("--architecture llama --tokenizer pretrained", "expected a pretrained model (base)"),
        ("--architecture llama --hidden-size 7 --tokenizer bpe", "expected an even number"),
        ("--base two\nlines", "base"),
        ("--base a/b/c", "no such file or folder"),
        ("--base ../..", "config.json"),
        ("--base ./base --model unadapted --shared-rank 0", "expected weights to train, got a frozen base without ad"),
    ],
)
def test_an_unusable_base_is_refused(
    options: str, message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*f"train texts.jsonl --out other {OPTIONS}".split(" "), *options.split(" ")]
    assert message in refusal(words, capfd)
    assert not (folder / "other" / "weights.safetensors").exists()


@pytest.mark.usefixtures("folder")
def test_a_missing_model_of_the_hub_is_refused_without_the_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = files.read_json(folder / "run" / "config.json")
    files.write_json(
        folder / "run" / "config.json", {**config, "backbone": {**config["backbone"], "base": "nobody/absent"}}
    )
    commands = ("evaluate run texts.jsonl", "finetune run texts.jsonl --out tuned", "report run --out a.html")
    for words in (*commands, "complete run a"):
        assert "base 'nobody/absent': this pretrained model is not on this machine" in refusal(words, capfd)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for base, architecture in (
        ("nobody/absent", "llama"),
        ("gpt2", "gpt2"),
        ("llama", "llama"),
        ("absent.v2", "llama"),
    ):
        problem = f"base '{base}': this pretrained model is not on this machine and cannot be downloaded ("
        error = refusal(f"train texts.jsonl --out other --base {base} {OPTIONS}", capfd)
        assert problem in error
        assert error.endswith(f"; --architecture {architecture} to train a new model")
        assert not (folder / "other").exists()


def test_other_weights_than_in_training_are_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    resume = f"train texts.jsonl --out run --resume --base ./base {OPTIONS}"
    for words in ("evaluate run texts.jsonl", "generate run", resume):
        assert "SHA-256" in refusal(words, capfd)


@pytest.mark.parametrize("name", ["run", "new"])
@pytest.mark.parametrize("file", ["tokenizer.json", "special_tokens_map.json"])
def test_altered_files_of_the_tokenizer_of_a_run_are_refused(
    name: str, file: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / name / file
    content = path.read_bytes()
    for altered in (content[:-3], b"", b"[]", content.replace(b"e", b"f", 1)):
        path.write_bytes(altered)
        assert f"{name}/" in refusal(f"evaluate {name} texts.jsonl", capfd)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["run", "new"])
def test_texts_of_a_megabyte(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    long_text = "the sea 😀 " * 80_000
    files.write_rows(folder / "long.jsonl", [{"text": long_text, "city": "a", "user": "a"}])
    for words in (f"evaluate {name} long.jsonl", f"classify {name} long.jsonl --target city"):
        assert main(words.split()) == 0  # only the first `max_tokens` tokens are read
    files.write_rows(folder / "long.jsonl", [{"text": text, "city": "a", "user": "a"} for text in ("sea", long_text)])
    error = refusal(f"score {name} long.jsonl", capfd)
    assert "long.jsonl row 2: the text has more tokens than the base can read: expected at most " in error
    assert "bytes" in refusal(["complete", name, long_text], capfd)
    if name == "run":
        error = refusal(["generate", name, "--prompt", long_text[:5000]], capfd)
        assert "the base can read 0 tokens after the prompt, expected at least 1; shorten the prompt" in error


def test_texts_that_are_longer_than_the_base_reads_are_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The base reads 64 tokens, of which the names of the city need some."""
    limit = Run.open(folder / "run").model.max_tokens
    assert limit is not None
    assert 50 < limit < 64
    texts = ["sea", "sea " * 80]
    files.write_rows(folder / "long.jsonl", [{"text": text, "city": "a", "user": "a"} for text in texts])
    hypotheses = [{"text": text, "acoustic": -1.0} for text in texts]
    files.write_rows(folder / "lists.jsonl", [{"id": "u7", "city": "a", "hypotheses": hypotheses}])
    problem = f"the text has more tokens than the base can read: expected at most {limit} with the start token"
    assert f"text 2: {problem}" in refusal("explain run long.jsonl --between city=a city=b", capfd)
    assert f"utterance u7: {problem}" in refusal("rescore run lists.jsonl", capfd)


def test_generated_texts_end_where_the_base_does(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = "generate run --context city=a --number 5 --max-tokens 1000 --temperature 50 --min-tokens"
    assert main([*words.split(), "40", "--out", "generated.jsonl"]) == 0
    rows = [json.loads(line) for line in (folder / "generated.jsonl").read_text().splitlines()]
    max_tokens = Run.open(folder / "run").model.max_tokens
    assert max_tokens is not None
    room = max_tokens - 1
    assert {(row["tokens"], row["ended"]) for row in rows if not row["ended"]} == {(room, False)}
    assert f"the base can read {room} tokens after the prompt, expected at least 100" in refusal(f"{words} 100", capfd)


def test_a_pretrained_base_needs_its_own_tokenizer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = refusal("train texts.jsonl --out other --base ./base --context city --tokenizer word", capfd)
    assert "tokenizer: expected pretrained, whose tokens a pretrained base knows, got word" in error
    options: dict[str, dict[str, Any]] = {
        "data": {"text": "text", "context": ["city"]},
        "tokenizer": {"kind": "word"},
        "backbone": {"kind": "huggingface", "base": "./base"},
    }
    with pytest.raises(UserError, match=r"tokenizer: expected pretrained, .*, got word"):
        train_run("texts.jsonl", "texts.jsonl", options, "other")
    assert not (folder / "other" / "config.json").exists()
