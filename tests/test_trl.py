"""Context adapters in the trainers of TRL, which call the layers of a model and compute its output layer themselves."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import datasets
from factorcell.hf import ContextCollator, ContextConfig, ContextModel, get_context_model
from tests import docs_files

# TRL itself uses names that transformers has replaced.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")]
trl = pytest.importorskip("trl", reason="an extra of the slow tests")
sft, dpo = (pytest.importorskip(f"trl.trainer.{name}_trainer") for name in ("sft", "dpo"))

CLEAN, DIRTY = " the room was clean .", " the room was dirty ."
ROWS = [{"stars": stars} for stars in (1, 5)] * 8
TRAINING: dict[str, Any] = {
    "max_steps": 30, "per_device_train_batch_size": 4, "learning_rate": 0.03, "logging_steps": 1, "seed": 0,
    "use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "remove_unused_columns": False,
    "save_strategy": "no", "activation_checkpointing": False,
}  # fmt: skip


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    docs_files.write_base(tmp_path / "base")
    return tmp_path / "base"


def new_model(base: Path, **options: Any) -> tuple[ContextModel, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token
    config = ContextConfig(["stars:category"], min_count=1, **options).fit(ROWS)
    return get_context_model(transformers.AutoModelForCausalLM.from_pretrained(base), config), tokenizer


def nats(model: ContextModel, tokenizer: Any, text: str, stars: int) -> float:
    tokens = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model(tokens, labels=tokens, context={"stars": stars}).loss)


def sft_trainer(model: ContextModel, tokenizer: Any, out: Path, **options: Any) -> Any:
    texts = [{**row, "text": CLEAN if row["stars"] == 5 else DIRTY} for row in ROWS]
    collator = sft.DataCollatorForLanguageModeling(pad_token_id=tokenizer.pad_token_id)
    return trl.SFTTrainer(
        model,
        trl.SFTConfig(str(out), **{**TRAINING, **options}),
        train_dataset=datasets.Dataset.from_list(texts),
        processing_class=tokenizer,
        data_collator=ContextCollator(collator, model.schema),
    )


@pytest.mark.parametrize("checkpointing", [False, True])
def test_sft_trains_each_text_in_its_context(base: Path, checkpointing: bool, tmp_path: Path) -> None:
    model, tokenizer = new_model(base, shared_rank=0)
    frozen = {name: values.clone() for name, values in model.base.named_parameters() if not values.requires_grad}
    trainer = sft_trainer(model, tokenizer, tmp_path, activation_checkpointing=checkpointing)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
    for stars, text, other in ((5, CLEAN, DIRTY), (1, DIRTY, CLEAN)):
        assert nats(model, tokenizer, text, stars) < nats(model, tokenizer, other, stars)
    values = dict(model.base.named_parameters())
    assert all(torch.equal(values[name], before) for name, before in frozen.items())


def test_loss_of_sft_is_that_of_the_model(base: Path, tmp_path: Path) -> None:
    model, tokenizer = new_model(base)
    with torch.no_grad():
        for values in model.parameters():
            if values.requires_grad:
                values.normal_(0, 0.5)
    trainer = sft_trainer(model, tokenizer, tmp_path)
    batch = next(iter(trainer.get_train_dataloader()))
    expected = model(**batch).loss
    assert torch.allclose(trainer.compute_loss(model, dict(batch)), expected, rtol=1e-5)
    batch["context"] = model.read_contexts([{"stars": 6 - row["stars"]} for row in ROWS[:4]])
    assert not torch.allclose(trainer.compute_loss(model, dict(batch)), expected, rtol=1e-5)


def dpo_trainer(model: ContextModel, tokenizer: Any, folder: Path, *, precompute: bool, **options: Any) -> Any:
    """Return a trainer that learns to prefer the clean room with five stars, and the dirty one with one star."""
    pairs = [
        {**row, "prompt": "now", "chosen": texts[0], "rejected": texts[1]}
        for row in ROWS
        for texts in [(CLEAN, DIRTY) if row["stars"] == 5 else (DIRTY, CLEAN)]
    ]
    return trl.DPOTrainer(
        model,
        args=trl.DPOConfig(str(folder), precompute_ref_log_probs=precompute, **TRAINING),
        train_dataset=datasets.Dataset.from_list(pairs),
        processing_class=tokenizer,
        data_collator=ContextCollator(dpo.DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id), model.schema),
        **options,
    )


def margins_of(trainer: Any) -> list[float]:
    return [row["rewards/margins"] for row in trainer.state.log_history if "rewards/margins" in row]


@pytest.mark.parametrize("precompute", [False, True])
def test_dpo_learns_the_preference_of_each_context(base: Path, precompute: bool, tmp_path: Path) -> None:
    model, tokenizer = new_model(base, shared_rank=0)
    trainer = dpo_trainer(model, tokenizer, tmp_path, precompute=precompute)
    trainer.train()
    margins = margins_of(trainer)
    assert margins[0] == pytest.approx(0, abs=1e-5)  # new adapters change nothing
    assert margins[-1] > 0.1
    gains = [
        nats(model, tokenizer, f"now{DIRTY}", stars) - nats(model, tokenizer, f"now{CLEAN}", stars) for stars in (5, 1)
    ]
    assert gains[0] > gains[1]
    reference = copy.deepcopy(model).requires_grad_(False)
    continued = dpo_trainer(model, tokenizer, tmp_path, precompute=precompute, ref_model=reference)
    continued.train()
    assert margins_of(continued)[0] == pytest.approx(0, abs=1e-5)  # the reference has the trained adapters


def test_sft_trains_a_base_whose_output_has_no_cache(base: Path, tmp_path: Path) -> None:
    """huggingface/trl#6685: the trainer read a cache from the output of each base."""
    tokenizer = new_model(base)[1]
    sizes = {"vocab_size": len(tokenizer), "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    no_dropout = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    plain = transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**sizes, **no_dropout))
    model = get_context_model(plain, ContextConfig(["stars:category"], min_count=1).fit(ROWS))
    trainer = sft_trainer(model, tokenizer, tmp_path, max_steps=3)
    batch = next(iter(trainer.get_train_dataloader()))
    assert torch.allclose(trainer.compute_loss(model, dict(batch)), model(**batch).loss, rtol=1e-5)
    assert trainer.train().global_step == 3
