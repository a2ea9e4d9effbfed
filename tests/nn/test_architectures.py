"""Pretrained bases of many architectures: without adapters as the library computes, with adapters per context."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from factorcell import UserError
from factorcell.config import Config
from factorcell.data.preparation import prepare
from factorcell.hf import ContextConfig, get_context_model
from factorcell.runs.fixed_context import FixedContext
from factorcell.runs.run import Run
from tests.nn.test_huggingface import randomize
from tests.pretrained_models import write_tokenizer

ARCHITECTURES = """
    apertus arcee biogpt bitnet cwm deepseek_v3 ernie4_5 ernie4_5_moe exaone4 flex_olmo gemma gemma3_text glm glm4
    glm4_moe gpt2 gpt_bigcode gpt_neox gptj granite granitemoe helium hunyuan_v1_dense llama minimax_m2 ministral
    mistral mixtral nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss
    smollm3 stablelm starcoder2
""".split()
ROWS = [{"text": "a bc", "city": "Oslo"}, {"text": "x a b", "city": "Nice"}]
SIZES = {  # each architecture knows some of these names
    "hidden_size": 16,
    "n_embd": 16,
    "d_model": 16,
    "word_embed_proj_dim": 16,
    "intermediate_size": 16,
    "ffn_dim": 16,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "max_position_embeddings": 64,
    "sliding_window": 3,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
NAMED_AS_EXPERTS = ("deepseek_v3", "ernie4_5_moe", "glm4_moe", "qwen2_moe")  # dense maps have the names of experts
WITHOUT = {"deepseek_v3": {"head_dim"}}  # names that an architecture derives from others


def write_base(folder: Path, architecture: str) -> Any:
    """Write a small model with random weights, and its tokenizer; return the model."""
    tokenizer = write_tokenizer(folder, [row["text"] for row in ROWS], 280)
    sizes = {name: size for name, size in SIZES.items() if name not in WITHOUT.get(architecture, ())}
    special = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(architecture).__class__(**sizes, **special)
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert sum(values.numel() for values in base.parameters()) < 1_000_000, "a size has another name"
    base.save_pretrained(folder)
    return base


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_run_without_adapters_computes_as_the_library(architecture: str, tmp_path: Path) -> None:
    write_base(tmp_path, architecture)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    config = Config.of(base=str(tmp_path), context=("city",), min_context_count=1, adapt=(), output_bias=())
    config = config.with_options(max_tokens=20, shared_rank=0)
    corpus = prepare(ROWS, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    ids = corpus.tokenizer.encode(corpus.tokenizer.split("a bc"))
    end = corpus.tokenizer.specials.end
    log_probs = base(torch.tensor([[end, *ids]])).logits.log_softmax(-1)
    nats = -sum(float(log_probs[0, position, token]) for position, token in enumerate([*ids, end]))
    assert run.score(["a bc"])[0] == pytest.approx(nats, abs=0.01)  # without the added tokens in the softmax


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # PEFT uses an old name of transformers
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in ("glm4_moe", "llama") else pytest.mark.slow) for name in ARCHITECTURES],
)
@torch.no_grad()
def test_peft_reads_an_exported_lora_as_the_run_computes(architecture: str, tmp_path: Path) -> None:
    write_base(tmp_path / "base", architecture)
    config = Config.of(base=str(tmp_path / "base"), context=("city",), min_context_count=1)
    config = config.with_options(adapt=("factor",), output_bias=(), max_tokens=20)
    corpus = prepare(ROWS, config)
    run = Run(tmp_path / "run", config, corpus.tokenizer, corpus.schema)
    randomize(run)
    if architecture in NAMED_AS_EXPERTS:  # PEFT would leave out the LoRA of these maps
        with pytest.raises(UserError, match="for experts"):
            run.export(tmp_path / "lora", to="lora", context={"city": "Oslo"})
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model = get_context_model(base, ContextConfig(["city"], min_count=1).fit(ROWS))
        with pytest.raises(UserError, match=r"target_modules: PEFT takes .* for experts.*; use merge_and_unload"):
            model.save_lora(tmp_path / "lora", {"city": "Oslo"})
        assert not (tmp_path / "lora").exists()
        return
    run.export(tmp_path / "lora", to="lora", context={"city": "Oslo"})
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    lora = peft.PeftModel.from_pretrained(base, tmp_path / "lora").eval()
    fixed = FixedContext.of(run, {"city": "Oslo"}, "error")
    tokens = torch.tensor([[fixed.start_id, *corpus.tokenizer.encode(corpus.tokenizer.split("a bc"))]])
    expected = fixed.log_probabilities(fixed.vectors(tokens)[0])[:, : fixed.vocabulary_size].exp()
    probabilities = lora(input_ids=tokens).logits[0, :, : fixed.vocabulary_size].softmax(-1)
    for values in (expected, probabilities):
        values[:, fixed.start_id] = 0  # a run never predicts it
        values /= values.sum(1, keepdim=True)
    torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_context_adapters_change_each_text_in_its_context(architecture: str, tmp_path: Path) -> None:
    base, tokens = write_base(tmp_path, architecture), torch.tensor([[0, 5, 6, 7, 8], [0, 9, 8, 3, 2]])
    contexts = [{"city": row["city"]} for row in ROWS]
    with torch.no_grad():
        expected = base(tokens).logits
    model = get_context_model(base, ContextConfig(["city"], min_count=1).fit(ROWS)).eval()
    optimizer = torch.optim.SGD([values for values in model.parameters() if values.requires_grad], lr=0.5)
    with torch.no_grad():
        assert torch.equal(model(tokens, context=contexts).logits, expected)
    for _ in range(2):  # the right factors are zero in the first step
        model(tokens, labels=tokens, context=contexts).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        both, second = model(tokens, context=contexts).logits, model(tokens[1:], context=contexts[1]).logits
        assert not torch.allclose(both, expected, atol=1e-4)
        assert not torch.allclose(both[1:], model(tokens[1:], context=contexts[0]).logits, atol=1e-7, rtol=0)
        torch.testing.assert_close(both[1:], second, atol=1e-5, rtol=1e-4)
        merged = model.merge_and_unload(contexts[1])
        torch.testing.assert_close(merged(tokens[1:]).logits, second, atol=1e-5, rtol=1e-4)
