"""Bases and tokenizers as they are published: padded tables, byte fallback, scaled embeddings, limited lengths."""

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from factorcell.adapters.adapters import AdaptedLinear
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.nn import sizes
from factorcell.nn.backbones import huggingface
from factorcell.nn.backbones.huggingface import UNUSED_BIAS, HuggingFaceBackbone, max_positions
from factorcell.nn.sizes import check_memory
from factorcell.runs.run import Run
from factorcell.training.fit import train_run
from tests.pretrained_models import write_pretrained, write_tokenizer

ROWS = [{"text": "a\nbc ☕", "city": "Oslo"}, {"text": "x\n    a <think> b", "city": "Nice"}]
LAYERS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}


def config_of(folder: Path, **options: Any) -> Config:
    config = Config.of(base=str(folder), context=("city",), min_context_count=1, adapt=("factor",), output_bias=())
    return config.with_options(max_tokens=20, **options)


def write_byte_fallback_tokenizer(folder: Path) -> Any:
    """Write a tokenizer like that of Llama 2, with added tokens that are not special."""
    vocabulary = {token: token_id for token_id, token in enumerate(("<unk>", "<s>", "</s>"))}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for letter in "▁abcdefghijklmnopqrstuvwxyz<>0xA":
        vocabulary.setdefault(letter, len(vocabulary))
    vocabulary["bc"] = len(vocabulary)
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[("b", "c")], unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_tokens(["<think>", "▁▁▁▁"])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    wrapped.save_pretrained(folder)
    return wrapped


def test_training_texts_have_the_tokens_of_the_library(tmp_path: Path) -> None:
    tokenizer = write_byte_fallback_tokenizer(tmp_path)
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, **LAYERS)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    train = prepare(ROWS, config_of(tmp_path))
    other = prepare(ROWS, config_of(tmp_path), tokenizer=train.tokenizer, schema=train.schema)
    expected = [[1, *tokenizer(row["text"], add_special_tokens=False)["input_ids"], 2] for row in ROWS]
    for corpus in (train, other):
        bounds = itertools.pairwise(corpus.offsets)
        assert [corpus.tokens[begin:end].tolist() for begin, end in bounds] == expected
    assert [train.tokenizer.join(train.tokenizer.split(row["text"])) for row in ROWS] == [row["text"] for row in ROWS]
    assert train.tokenizer.known_count == len(train.tokenizer) == len(tokenizer)


@pytest.mark.parametrize("padding", [0, 1, 40])
def test_added_tokens_have_no_rows_of_the_padding_of_a_base(tmp_path: Path, padding: int) -> None:
    write_pretrained(tmp_path, [row["text"] for row in ROWS], padding=padding)
    config = config_of(tmp_path)
    corpus = prepare(ROWS, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    unknown, start, end = corpus.tokenizer.specials
    assert (start, unknown) == (corpus.tokenizer.known_count, corpus.tokenizer.known_count + 1)
    assert torch.equal(run.model.embedding[start], run.model.embedding[end])
    assert torch.equal(run.model.embedding[unknown], run.model.embedding[end])
    backbone = run.model.backbone
    assert isinstance(backbone, HuggingFaceBackbone)
    bias = backbone.output_bias(len(corpus.tokenizer), corpus.tokenizer.known_count)
    assert bias is not None
    assert bias[[start, unknown]].tolist() == [UNUSED_BIAS, UNUSED_BIAS]
    assert not bias[: corpus.tokenizer.known_count].any()


@pytest.mark.parametrize("configured_end", [5, 50_256, None, [7, 8]])
def test_added_tokens_have_the_row_of_the_end_token_of_the_tokenizer(configured_end: Any, tmp_path: Path) -> None:
    """The config of a base may name another end token, also one that its table lacks."""
    write_pretrained(tmp_path, [row["text"] for row in ROWS])
    base = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**base, "eos_token_id": configured_end}))
    config = config_of(tmp_path)
    corpus = prepare(ROWS, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    _, start, end = corpus.tokenizer.specials
    assert start >= corpus.tokenizer.known_count > end
    assert torch.equal(run.model.embedding[start], run.model.embedding[end])


def test_the_digest_of_a_base_is_that_of_the_weights_that_are_loaded(tmp_path: Path) -> None:
    write_pretrained(tmp_path, [row["text"] for row in ROWS])
    digest = pretrained.find_source(str(tmp_path)).digest()
    (tmp_path / "adapter_model.safetensors").write_bytes(b"a LoRA of the base")
    assert pretrained.find_source(str(tmp_path)).digest() == digest


def test_a_link_to_a_file_without_an_ending_is_stored_as_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of Hugging Face has such links."""
    (tmp_path / "blob").write_bytes(b"weights")
    link = tmp_path / "model[q4].gguf"
    link.symlink_to("blob")
    monkeypatch.setattr(pretrained, "read_config", lambda source: None)
    monkeypatch.chdir(tmp_path)
    base, digest = pretrained.identify("./model[q4].gguf")
    assert base == str(link)
    assert pretrained.identify(base, digest) == (base, digest)


@pytest.mark.parametrize("architecture", ["gemma", "gemma3_text"])
def test_scaled_embeddings_are_those_of_the_library(tmp_path: Path, architecture: str) -> None:
    tokenizer = write_tokenizer(tmp_path, [row["text"] for row in ROWS], 280)
    kind = transformers.AutoConfig.for_model(architecture).__class__
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "head_dim": 8, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    base = transformers.AutoModelForCausalLM.from_config(kind(**LAYERS, **sizes))
    base.save_pretrained(tmp_path)
    config = config_of(tmp_path).with_options(adapt=(), shared_rank=0)
    corpus = prepare(ROWS, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    end = corpus.tokenizer.specials.end
    ids = corpus.tokenizer.encode(corpus.tokenizer.split("a bc"))
    with torch.no_grad():
        expected = base.eval()(torch.tensor([[end, *ids]])).logits.log_softmax(-1)
    nats = -sum(float(expected[0, position, token]) for position, token in enumerate([*ids, end]))
    assert run.score(["a bc"])[0] == pytest.approx(nats, abs=0.01)  # without the added tokens in the softmax


def test_texts_and_prompts_may_have_as_many_tokens_as_the_base_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding does not count, and a cut prompt begins with a start token."""
    monkeypatch.setattr("factorcell.config.MIN_PROMPT_TOKENS", 20)
    write_pretrained(tmp_path, ["a b"], vocabulary=260)
    config = config_of(tmp_path, context=("city", "question:prompt"))
    rows = [{"text": "a", "question": "b" * 50, "city": "Oslo"}, {"text": "b" * 60, "question": "", "city": "Nice"}]
    corpus = prepare(rows, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    together = run.score(rows).tolist()
    assert together == pytest.approx([run.score([row])[0] for row in rows], abs=1e-4)
    with pytest.raises(UserError, match=r"rows row 1: .* expected at most 64 with the start token and prompts, got 71"):
        run.score_rows([{**rows[1], "text": "b" * 70}])
    largest = 64 - 1 - 21  # prompts have at most half of these tokens, so 21
    Run(tmp_path / "run", config.with_options(max_tokens=largest), corpus.tokenizer, corpus.schema)
    with pytest.raises(UserError, match=f"expected at most {largest}"):
        Run(tmp_path / "run", config.with_options(max_tokens=largest + 1), corpus.tokenizer, corpus.schema)


def test_bases_that_change_with_the_longest_text_are_limited_to_their_original_length() -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    config = transformers.Phi3Config(
        **LAYERS,
        original_max_position_embeddings=16,
        rope_parameters={**rope, "original_max_position_embeddings": 16},
        pad_token_id=0,
    )
    assert max_positions(config) == 16
    assert max_positions(transformers.LlamaConfig(**LAYERS)) == 64


def test_an_encoder_with_a_decoder_is_refused_in_one_line() -> None:
    corpus = prepare(ROWS, Config.of())
    with pytest.raises(UserError, match=r"architecture 'bart': .*not supported"):
        Run(Path("run"), Config.of(architecture="bart"), corpus.tokenizer, corpus.schema)


def test_a_base_with_another_computation_of_attention_is_refused_in_one_line(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, [row["text"] for row in ROWS], 280)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "n_layer": 1, "n_head": 2}
    transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**sizes)).save_pretrained(tmp_path)
    corpus = prepare(ROWS, config_of(tmp_path))
    with pytest.raises(UserError, match=r": cannot be loaded \(BloomForCausalLM does not support .*\)$"):
        check_memory(config_of(tmp_path), len(corpus.tokenizer), corpus.schema)


def test_a_base_with_layers_after_the_last_vectors_is_refused_in_one_line(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, [row["text"] for row in ROWS], 280)
    sizes = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": len(tokenizer)}
    config = transformers.ModernBertDecoderConfig(**LAYERS, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    corpus = prepare(ROWS, config_of(tmp_path))
    with pytest.raises(UserError, match=r": expected logits that the output layer computes from the last vectors$"):
        Run(Path("run"), config_of(tmp_path), corpus.tokenizer, corpus.schema)


def test_blocks_without_notices_restore_standard_error_also_in_several_threads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, inside = sys.stderr, threading.Barrier(2, timeout=1)

    def work() -> None:
        with pretrained.quiet():
            try:
                inside.wait()  # never passed, because only one thread is in its block
            except threading.BrokenBarrierError:
                inside.reset()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stderr is before


def test_lossy_tokenizers_are_not_exact(tmp_path: Path) -> None:
    write_pretrained(tmp_path, ["the sea"])
    tokenizer = prepare(ROWS, config_of(tmp_path)).tokenizer
    assert tokenizer.is_lossless
    content = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    small = tokenizers.Tokenizer(tokenizers.models.BPE())
    small.pre_tokenizer, small.decoder = content.pre_tokenizer, content.decoder
    small.train_from_iterator(["the sea"], tokenizers.trainers.BpeTrainer(special_tokens=["<|endoftext|>"]))
    small.save(str(tmp_path / "tokenizer.json"))
    lossy = prepare([{"text": "the sea", "city": "Oslo"}], config_of(tmp_path)).tokenizer
    assert not lossy.is_lossless


def test_maps_of_inputs_with_more_dimensions_have_the_change_of_their_context() -> None:
    """Multi-head latent attention, as in DeepSeek V3, reads inputs (B, 1, T, D)."""
    torch.manual_seed(0)
    linear = AdaptedLinear(3, 4, 2, adapt=("concat", "scale", "factor"), rank=2)
    for parameter in linear.parameters():
        parameter.data.normal_()
    shift, x = linear.condition(torch.randn(5, 2)), torch.randn(5, 6, 7, 3)
    expected = torch.stack([linear(x[:, index], shift) for index in range(6)], dim=1)
    torch.testing.assert_close(linear(x, shift), expected)
    assert linear(x[:, :0], shift).shape == (5, 0, 7, 4)


def test_a_training_loads_its_base_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pretrained(tmp_path / "base", [row["text"] for row in ROWS])
    loaded: list[Any] = []
    load = huggingface._load

    def counted_load(*arguments: Any) -> Any:
        loaded.append(arguments)
        return load(*arguments)

    monkeypatch.setattr(huggingface, "_load", counted_load)
    sizes.meta_model.cache_clear()
    options: dict[str, Any] = {
        "data": {"context": ["city"], "min_context_count": 1, "max_tokens": 20},
        "backbone": {"base": str(tmp_path / "base"), "kind": "huggingface"},
        "tokenizer": {"kind": "pretrained"},
        "training": {"epochs": 1.0, "threads": 1},
    }
    train_run(ROWS * 8, ROWS, options, tmp_path / "run")
    assert len(loaded) == 1
    assert sizes.meta_model.cache_info().misses == 1
