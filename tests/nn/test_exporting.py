"""An exported model gives the logits of the run in the context, as PEFT, transformers and gguf read it."""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import peft
import pytest
import torch
import transformers
from torch import Tensor

from factorcell.commands.cli.main import main
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.runs import exporting
from factorcell.runs.exporting import _begin_of_texts, export
from factorcell.runs.fixed_context import FixedContext
from factorcell.runs.run import Run
from tests.findings import logged_progress
from tests.nn.test_huggingface import ROWS, base_model, make_config, make_run, randomize
from tests.pretrained_models import write_pretrained
from tests.small_runs import as_any

# PEFT warns that a LoRA with biases cannot be merged, and transformers that PEFT uses an old name.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

OSLO, ROME = {"city": "Oslo"}, {"city": "Rome"}
FACTOR = {"adapt": ("factor",), "output_bias": ()}
EVERY_ADAPTER = {"adapt": ("factor", "concat", "scale")}


def random_run(folder: Path, architecture: str, **options: Any) -> Run:
    """Return a run with random weights, whose pretrained base is `folder / architecture`."""
    base_model(architecture).save_pretrained(folder / architecture)
    run, _ = make_run(folder / "run", make_config(folder / architecture, **options))
    randomize(run)
    run.model.requires_grad_(False)
    return run


def tokens_of(run: Run, text: str = "abcab") -> Tensor:
    """Return the ids (1, T) of a text after its start token."""
    return torch.tensor([[run.tokenizer.specials.start, *run.tokenizer.encode(run.tokenizer.split(text))]])


def run_log_probs(run: Run, context: dict[str, Any], tokens: Tensor) -> Tensor:
    """Return the log probabilities (T, V) of the next token that `LanguageModel.step` computes token by token."""
    conditioning = run.model.condition(run.read([""], [context]).context(np.array([0])))
    state, rows = None, []
    for token in tokens[0]:
        log_probs, state = run.model.step(token[None], conditioning, state)
        rows.append(log_probs[0])
    return torch.stack(rows)


def exported_log_probs(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.log_softmax(model.eval()(input_ids=tokens).logits[0].float(), dim=-1)


def load_lora(base: Path, folder: Path, **options: Any) -> Any:
    return peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base, **options), folder)


def assert_same(run: Run, context: dict[str, Any], model: Any, tolerance: float = 1e-5) -> None:
    """Assert that a model of transformers gives the probabilities of the run.

    Those of the start token are zero, except in a LoRA without a bias of the output layer.
    """
    tokens = tokens_of(run)
    expected, actual = run_log_probs(run, context, tokens), exported_log_probs(model, tokens)
    start = run.tokenizer.specials.start
    assert float(expected[:, start].max()) < -1000
    if run.config.model.output_bias or not run.model.backbone.is_frozen:
        assert float(actual[:, start].max()) < -1000  # it is never predicted
    others = [token for token in range(len(run.tokenizer)) if token != start]
    actual, expected = (torch.log_softmax(log_probs[:, others], dim=-1) for log_probs in (actual, expected))
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        *((architecture, options) for architecture in ("gpt2", "llama", "qwen2") for options in ({}, FACTOR)),
        ("llama", {"adapt": ("concat",), "target_modules": ("v_proj",)}),
        ("gpt2", {"target_modules": ("c_proj",)}),
    ],
)
def test_peft_loads_the_lora_and_gives_the_probabilities_of_the_run(
    architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run = random_run(tmp_path, architecture, **options)
    for number, context in enumerate((OSLO, ROME)):
        export(run, tmp_path / f"lora{number}", context=context)
        assert_same(run, context, load_lora(tmp_path / architecture, tmp_path / f"lora{number}"))
    models = [load_lora(tmp_path / architecture, tmp_path / f"lora{number}") for number in (0, 1)]
    first, second = (exported_log_probs(model, tokens_of(run)) for model in models)
    assert float((first - second).abs().max()) > 0.01


@pytest.mark.parametrize("to", ["lora", "merged"])
def test_names_are_written_before_each_text_of_an_exported_model(to: str, tmp_path: Path) -> None:
    run = random_run(tmp_path, "llama", adapt=("names", "factor"), output_bias=(), max_tokens=20)
    with logged_progress() as notices:
        export(run, tmp_path / "exported", to=to, context=OSLO)
    fixed = FixedContext.of(run, OSLO, "error")
    start, names = run.tokenizer.specials.start, run.tokenizer.encode(run.tokenizer.split("city: Oslo\n"))
    assert fixed.name_ids == tuple(names)
    assert f"put the tokens {[start, *names, start]} before each text, as in training: <s>, " in notices[-1]
    assert 'call the tokenizer with two texts, "city: Oslo\\n" and the text' in _begin_of_texts(fixed, True)
    exported = (
        load_lora(tmp_path / "llama", tmp_path / "exported")
        if to == "lora"
        else transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    )
    tokens = tokens_of(run)
    all_tokens = torch.cat([torch.tensor([[start, *names]]), tokens], dim=1)
    expected, actual = run_log_probs(run, OSLO, tokens), exported_log_probs(exported, all_tokens)[1 + len(names) :]
    others = [token for token in range(len(run.tokenizer)) if token != start]
    actual, expected = (torch.log_softmax(log_probs[:, others], dim=-1) for log_probs in (actual, expected))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_value_that_training_never_saw_has_its_expected_value_on_request(tmp_path: Path) -> None:
    run = random_run(tmp_path, "llama", **FACTOR)
    export(run, tmp_path / "lora", context={"city": "Paris"}, unknown="expected")
    assert "in the context: city Paris." in (tmp_path / "lora" / "README.md").read_text()
    with pytest.raises(UserError, match="expected the format merged"):
        export(run, tmp_path / "other", context=OSLO, approximate=ROWS)


def test_columns_without_a_value_have_their_expected_value(tmp_path: Path) -> None:
    run = random_run(tmp_path, "llama")
    run.export(tmp_path / "lora")
    assert_same(run, {}, load_lora(tmp_path / "llama", tmp_path / "lora"))


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("phi", {}), ("phi", EVERY_ADAPTER), ("phi", {"train_base": True}), ("gpt2", FACTOR)],
)
def test_merged_model_gives_the_probabilities_of_the_run(
    architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run = random_run(tmp_path, architecture, **options)
    for name, context in (("oslo", OSLO), ("rome", ROME)):
        export(run, tmp_path / name, to="merged", context=context)
        assert_same(run, context, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_run_without_an_output_bias_needs_no_approximation(architecture: str, tmp_path: Path) -> None:
    run = random_run(tmp_path, architecture, **FACTOR)
    with logged_progress() as notices:
        export(run, tmp_path / "merged", to="merged", context=OSLO)
    assert_same(run, OSLO, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    export(run, tmp_path / "lora", context=OSLO)
    assert not json.loads((tmp_path / "lora" / "adapter_config.json").read_text())["lora_bias"]
    assert not any("approximation" in notice for notice in notices)


def test_merging_does_not_change_the_base(tmp_path: Path) -> None:
    run = random_run(tmp_path, "gpt2", **FACTOR)
    before = run_log_probs(run, OSLO, tokens_of(run))
    export(run, tmp_path / "merged", to="merged", context=OSLO)
    assert torch.equal(run_log_probs(run, OSLO, tokens_of(run)), before)


@pytest.mark.parametrize(("tokenizer", "architecture"), [("char", "phi"), ("bpe", "phi"), ("word", "phi")])
def test_a_new_transformer_is_merged_with_pieces(tokenizer: str, architecture: str, tmp_path: Path) -> None:
    sizes = {"layers": 1, "hidden_size": 16, "context_size": 3, "variable_size": 3, "rank": 2}
    config = Config.of(architecture=architecture, context=("city",), min_count=1, min_context_count=1, **sizes)
    config = config.with_options(tokenizer=tokenizer, max_vocabulary=280)
    rows = [{"text": text, "city": city} for text in ("the sea, is cold", "sun 😀") for city in ("Oslo", "Rome")]
    corpus = prepare(rows, config)
    run = Run.create(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    randomize(run)
    run.model.requires_grad_(False)
    export(run, tmp_path / "merged", to="merged", context=OSLO)
    assert_same(run, OSLO, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    assert (tmp_path / "merged" / "tokenizer.json").exists() == (tokenizer == "bpe")
    if tokenizer != "bpe":
        return
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    for text in ("the sea, is cold", "sun sun 😀", "", "<s> the"):
        assert loaded(text)["input_ids"] == tokens_of(run, text)[0].tolist()


@pytest.mark.parametrize(("architecture", "options"), [("llama", {}), ("qwen2", {"adapt": ("factor",)})])
def test_an_output_bias_without_a_place_is_refused_or_approximated_at_a_measured_cost(
    architecture: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run = random_run(tmp_path, architecture, **options)
    with pytest.raises(UserError, match=r"output layer.*approximate"):
        export(run, tmp_path / "merged", to="merged", context=OSLO)
    assert not (tmp_path / "merged").exists()
    with logged_progress() as notices:
        export(run, tmp_path / "merged", to="merged", context=OSLO, approximate=ROWS)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    nats, count = 0.0, 0
    _, held_out = run.prepare(ROWS).split(0.5, seed=0)
    for number in range(len(held_out)):
        ids = held_out.batch(np.array([number])).tokens[0].tolist()
        log_probs = exported_log_probs(model, torch.tensor([ids[:-1]]))
        nats -= float(log_probs.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        count += len(ids) - 1
    fixed = FixedContext.of(run, OSLO, "error")
    in_oslo = [{**row, **OSLO} for row in ROWS]
    assert fixed.perplexity(run.prepare(ROWS)) == pytest.approx(run.evaluate(in_oslo).perplexity, rel=1e-4)
    before = fixed.perplexity(held_out)
    assert f"perplexity {np.exp(nats / count):.2f} instead of {before:.2f}" in notices[0]


def test_lora_of_a_run_without_biases_has_only_pairs_of_matrices(tmp_path: Path) -> None:
    run = random_run(tmp_path, "llama", **FACTOR)
    export(run, tmp_path / "lora", context=OSLO)
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_bias"]) == (34, 34, False)
    assert "lm_head" not in config["target_modules"]
    assert_same(run, OSLO, load_lora(tmp_path / "llama", tmp_path / "lora"))


@pytest.mark.parametrize("architecture", ["phi", "llama"])
def test_a_base_in_bfloat16_is_exported_within_its_precision(architecture: str, tmp_path: Path) -> None:
    run = random_run(tmp_path, architecture, precision="bfloat16", adapt=("factor",))
    export(run, tmp_path / "lora", context=OSLO)
    model = load_lora(tmp_path / architecture, tmp_path / "lora", dtype=torch.bfloat16)
    assert_same(run, OSLO, model, tolerance=0.1)
    if architecture == "phi":
        export(run, tmp_path / "merged", to="merged", context=OSLO)
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        assert merged.dtype == torch.bfloat16
        assert_same(run, OSLO, merged, tolerance=0.1)


def dequantized_changes(path: Path) -> dict[str, np.ndarray]:
    """Return B A of each map in a GGUF file, times alpha / rank."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    alpha = float(reader.fields["adapter.lora.alpha"].contents())
    names = {name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")}
    assert len(tensors) == 2 * len(names)
    return {
        name: tensors[f"{name}.lora_b"] @ tensors[f"{name}.lora_a"] * alpha / len(tensors[f"{name}.lora_a"])
        for name in names
    }


def rows_of_llama_cpp(matrix: Tensor, heads: int) -> Tensor:
    """Return the rows of a query or key map in the order of llama.cpp: row 2 i + j of a head is row i + j size / 2."""
    size = len(matrix) // heads
    order = [head * size + row // 2 + row % 2 * size // 2 for head in range(heads) for row in range(size)]
    return matrix[order]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen2"])
def test_gguf_has_the_change_of_each_map_under_its_name(architecture: str, tmp_path: Path) -> None:
    run = random_run(tmp_path, architecture, **FACTOR)
    export(run, tmp_path / "gguf", to="gguf-lora", context=OSLO)
    path = tmp_path / "gguf" / "adapter.gguf"
    fields = gguf.GGUFReader(path).fields
    expected = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": architecture}
    assert {name: fields[name].contents() for name in expected} == expected
    number = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, 2)
    maps, changes = FixedContext.of(run, OSLO, "error").maps(), dequantized_changes(path)
    assert len(changes) == len(maps)
    for projection, shift in maps:
        factors = shift.low_rank_factors()
        assert factors is not None
        matrix = (factors[0] @ factors[1]).T
        if architecture == "llama" and projection.path.endswith(("q_proj", "k_proj")):
            matrix = rows_of_llama_cpp(matrix, 2 if projection.path.endswith("q_proj") else 1)
        np.testing.assert_allclose(changes[f"{names.get_name(projection.path)}.weight"], matrix.numpy(), atol=1e-5)


def test_a_gguf_base_has_the_permuted_rows_that_the_export_assumes(tmp_path: Path) -> None:
    """`transformers` reads the query map of a GGUF file in the inverse order of the export."""
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    matrix = torch.arange(24.0)[:, None].expand(24, 3)
    reverse = LlamaTensorProcessor(config={"num_attention_heads": 4, "num_key_value_heads": 2})
    permuted = rows_of_llama_cpp(matrix, 4).numpy()
    np.testing.assert_array_equal(reverse._reverse_permute_weights(permuted, 4, 4), matrix.numpy())


@pytest.mark.parametrize(
    ("options", "to", "message"),
    [
        (EVERY_ADAPTER, "lora", "the adapter scale"),
        (EVERY_ADAPTER, "gguf-lora", "the adapter scale"),
        ({"train_base": True}, "lora", "training changed all weights"),
        ({"prefix_vectors": 2}, "lora", "prefix vectors"),
        ({"adapt": ("prefix",)}, "merged", "control codes"),
        ({}, "gguf-lora", "cannot store biases"),
        ({}, "onnx", "onnx expects the backbone recurrent and the head softmax, got huggingface and softmax"),
        ({}, "tflite", "unknown format 'tflite'"),
    ],
)
def test_what_a_format_cannot_store_is_refused_in_one_line(
    options: dict[str, Any], to: str, message: str, tmp_path: Path
) -> None:
    run = random_run(tmp_path, "llama", **options)
    with pytest.raises(UserError, match=message) as caught:
        export(run, tmp_path / "out", to=to, context=OSLO)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_recurrent_run_and_a_folder_with_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = Config.of(context=("city",), min_count=1, min_context_count=1, hidden_size=4, embedding_size=4)
    corpus = prepare(ROWS, recurrent)
    run = Run.create(tmp_path / "recurrent", recurrent, corpus.tokenizer, corpus.schema)
    with pytest.raises(UserError, match=r"expected a Transformer.*got recurrent; only the format onnx stores"):
        export(run, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match="the format onnx requires the package onnxscript, which is not installed"):
        export(run, tmp_path / "out", to="onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", sys)  # any module: the context is refused before it is used
    with pytest.raises(UserError, match="expected neither context nor approximate"):
        export(run, tmp_path / "out", to="onnx", context=OSLO)
    assert not (tmp_path / "out").exists()
    run = random_run(tmp_path, "llama")
    with pytest.raises(UserError, match="exists already"):
        export(run, tmp_path / "llama", context=OSLO)
    with pytest.raises(UserError, match="Paris"):
        export(run, tmp_path / "out", context={"city": "Paris"})


def test_a_failed_export_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = random_run(tmp_path, "llama")

    def fail(fixed: FixedContext, folder: Path) -> None:
        assert folder.parent == tmp_path / "out"  # files in another folder may be on another disk
        (folder / "adapter_model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_peft", fail)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / "out", context=OSLO)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert list((tmp_path / "out").iterdir()) == []
    export(run, tmp_path / "out", context=OSLO)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    files = ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_the_command_exports_a_run_with_a_start_token_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": text, "city": city} for text in ("the sea is cold", "sun and sand") for city in ("Oslo", "Nice")]
    write_table(tmp_path / "texts.csv", rows)
    write_pretrained(tmp_path / "llama", [row["text"] for row in rows])  # the start token is also the end token
    options = (
        "--context city --min-context-count 1 --rank 2 --context-size 2 --variable-size 2 --epochs 1 --max-tokens 30 "
        "--adapt factor --output-bias low_rank"
    )
    words = f"train texts.csv --dev texts.csv --out run --base ./llama {options} --precision float32 --threads 1"
    assert (
        main(
            [
                *words.split(),
                "--precision",
                "float32",
            ]
        )
        == 0
    )
    assert main("export run lora --context city=Oslo --to lora".split()) == 0
    assert "put the token <|endoftext|> (id 0) before each text" in capsys.readouterr().err
    run = Run.open("run")
    tokens = tokens_of(run, "the sea")
    with_base_tokens = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, 1:]], dim=1)
    actual = exported_log_probs(load_lora(tmp_path / "llama", tmp_path / "lora"), with_base_tokens)
    size = actual.shape[1]  # the base has no embeddings of the start token and the unknown token of the run
    assert size < len(run.tokenizer)
    assert float(run_log_probs(run, {"city": "Oslo"}, tokens)[:, run.tokenizer.specials.unknown].max()) < -15
    expected = torch.log_softmax(run_log_probs(run, {"city": "Oslo"}, tokens)[:, :size], dim=-1)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert main("export run merged --context city=Oslo --to merged --approximate texts.csv".split()) == 0
    assert "approximation of the bias of the output layer: perplexity" in capsys.readouterr().err
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert loaded("the sea <|endoftext|>")["input_ids"] == [0, *tokens_of(run, "the sea <|endoftext|>")[0, 1:].tolist()]
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (len(loaded), merged.config.vocab_size, merged.config.eos_token_id) == (size, size, 0)
    assert main("export run lora --context city=Oslo".split()) == 2
    assert "exists already" in capsys.readouterr().err
    assert main("export run other --to gguf-lora".split()) == 2
    assert "gguf-lora cannot store biases" in capsys.readouterr().err


def test_a_merged_model_has_no_quantization_of_its_base(tmp_path: Path) -> None:
    run = random_run(tmp_path, "llama", **FACTOR)
    as_any(run.model.backbone).base.config.quantization_config = {"quant_method": "gguf"}
    export(run, tmp_path / "merged", to="merged", context=OSLO)
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
