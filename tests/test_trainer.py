"""The script that trains context adapters with `Trainer`, against plain loops, with several processes and shards."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor, distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

import datasets
from examples import trainer
from factorcell.hf import ContextModel
from tests import docs_files
from tests.nn.test_context_model import CONTEXTS, new_model

ROOT = Path(__file__).parent.parent
STEPS, MIDDLE = 4, 2
DEVIATION = 1e-6  # of sums in another order
BFLOAT16_DEVIATION = 1e-3  # products of other numbers of rows are rounded differently


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, a training and a development table."""
    folder = tmp_path_factory.mktemp("trainer")
    docs_files.write_tables(folder)
    docs_files.write_base(folder / "base")
    return folder


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))


def words(folder: Path, out: Path, *options: str, batch: int = 8) -> list[str]:
    """Return the words of a command line."""
    text = f"""--base {folder}/base --table {folder}/train.parquet --dev {folder}/dev.parquet --text review
        --context stars city --output_dir {out} --use_cpu --max_steps {STEPS} --per_device_train_batch_size {batch}
        --per_device_eval_batch_size {batch} --eval_strategy steps --eval_steps {MIDDLE} --save_strategy steps
        --save_steps {MIDDLE} --disable_tqdm True"""
    return [*text.split(), *options]


def weights(out: Path, name: str = "context_model.safetensors") -> dict[str, Tensor]:
    return safetensors.torch.load_file(out / name)


@pytest.fixture(scope="module")
def training(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[transformers.Trainer, Path]:
    """A trainer after a training without interruption, and its output folder."""
    out = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        return trainer.main(words(folder, out)), out


def test_trainer_writes_the_trained_tensors_and_opens_them(
    training: tuple[transformers.Trainer, Path], folder: Path
) -> None:
    result, out = training
    trained = {name: value for name, value in result.model.named_parameters() if value.requires_grad}
    for saved in (weights(out), weights(out / f"checkpoint-{STEPS}", "model.safetensors")):
        assert set(saved) == set(trained)
        assert all(torch.equal(saved[name], value) for name, value in trained.items())
    opened = ContextModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(folder / "base"), out)
    tokens, context = torch.arange(3, 9)[None], {"stars": 5, "city": "Oslo"}
    with torch.no_grad():
        assert torch.equal(opened(tokens, context=context).logits, result.model(tokens, context=context).logits)


def test_evaluation_loss_is_that_of_each_text_in_its_context(
    training: tuple[transformers.Trainer, Path], folder: Path
) -> None:
    result, _ = training
    rows, tokenizer = trainer.open_table(str(folder / "dev.parquet")), result.data_collator.collator.tokenizer
    nats, counts = [], []
    for row in rows:
        ids = torch.tensor([[1, *tokenizer(row["review"])["input_ids"], 2]])  # with a start and an end token
        with torch.no_grad():
            loss = result.model(ids, labels=ids, context={"stars": row["stars"], "city": row["city"]}).loss
        nats.append(float(loss) * (ids.shape[1] - 1))
        counts.append(ids.shape[1] - 1)
    batches = [slice(begin, begin + 8) for begin in range(0, len(nats), 8)]  # `Trainer` weights batches by their rows
    losses = [sum(nats[batch]) / sum(counts[batch]) * len(nats[batch]) for batch in batches]
    (final,) = [
        entry["eval_loss"] for entry in result.state.log_history if entry["step"] == STEPS and "eval_loss" in entry
    ]
    assert final == pytest.approx(sum(losses) / len(rows), rel=1e-4)


def test_names_are_before_each_text_and_are_not_predicted(folder: Path, tmp_path: Path) -> None:
    result = trainer.main(words(folder, tmp_path, "--names"))
    tokenizer, data = result.data_collator.collator.tokenizer, result.eval_dataset
    for row, features in zip(trainer.open_table(str(folder / "dev.parquet")), data, strict=True):
        names = [1, *tokenizer(f"stars: {row['stars']}\ncity: {row['city']}\n")["input_ids"]]
        text = [*tokenizer(row["review"])["input_ids"], 2]
        assert features["input_ids"] == [*names, 1, *text]
        assert features["labels"] == [-100] * (len(names) + 1) + text
        assert (features["stars"], features["city"]) == (row["stars"], row["city"])
    table = datasets.Dataset.from_list([{"text": "sea", "city": None, "stars": 5}])
    (features,) = trainer.tokenize(table, tokenizer, "text", result.model.schema, with_names=True)
    names = tokenizer("stars: 5\ncity:\n")["input_ids"]
    assert features["input_ids"] == [1, *names, 1, *tokenizer("sea")["input_ids"], 2]


def test_a_text_that_is_cut_has_no_end_token(
    training: tuple[transformers.Trainer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the model would learn that texts end after this number of tokens."""
    tokenizer, schema = training[0].data_collator.collator.tokenizer, training[0].model.schema
    texts = ["sea", "sea air", "sea air sea air"]
    counts = [len(tokenizer(text)["input_ids"]) for text in texts]
    table = datasets.Dataset.from_list([{"text": text, "city": "Oslo", "stars": 5} for text in texts])
    monkeypatch.setattr(trainer, "MAX_TOKENS", counts[1])
    rows = trainer.tokenize(table, tokenizer, "text", schema)["input_ids"]
    assert counts[0] < counts[1] < counts[2]
    assert [row[-1] == 2 for row in rows] == [True, False, False]
    assert [len(row) for row in rows] == [counts[0] + 2, counts[1] + 1, counts[1] + 1]


def test_resumed_training_gives_the_same_weights(
    training: tuple[transformers.Trainer, Path], folder: Path, tmp_path: Path
) -> None:
    _, out = training
    trainer.main(words(folder, tmp_path, "--resume_from_checkpoint", str(out / f"checkpoint-{MIDDLE}")))
    expected = weights(out)
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())
    first = weights(out / f"checkpoint-{MIDDLE}", "model.safetensors")
    assert not all(torch.equal(value, expected[name]) for name, value in first.items())


def test_activation_checkpointing_does_not_change_the_weights(
    training: tuple[transformers.Trainer, Path], folder: Path, tmp_path: Path
) -> None:
    trainer.main(words(folder, tmp_path, "--activation_checkpointing"))
    expected = weights(training[1])
    assert all(torch.equal(value, expected[name]) for name, value in weights(tmp_path).items())


@pytest.mark.slow
def test_two_processes_train_the_same_weights_as_one(
    training: tuple[transformers.Trainer, Path], folder: Path, tmp_path: Path
) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(ROOT / "examples" / "trainer.py"), *words(folder, tmp_path, batch=4)]
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, env=os.environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    expected = weights(training[1])
    for name, value in weights(tmp_path).items():
        torch.testing.assert_close(value, expected[name], atol=5 * DEVIATION, rtol=0)


def train(model: Any, rows: slice) -> None:
    """Train two steps with the rows of a fixed batch."""
    tokens = torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    for _ in range(2):
        model(tokens[rows], labels=tokens[rows], context=CONTEXTS[rows], use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


CASES: list[tuple[str, torch.dtype, bool]] = [
    ("llama", torch.float32, False),
    ("llama", torch.bfloat16, True),
    ("qwen2", torch.float32, True),
]


def train_shards(rank: int, folder: str) -> None:
    """Compare models whose layers two processes share with the same models in one process; runs in both processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for number, (name, dtype, is_recomputed) in enumerate(CASES):
        model, out = new_model(name), Path(folder) / str(number)
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
        reference = copy.deepcopy(model)
        train(reference, slice(0, 4))
        if is_recomputed:
            model.train()
            model.activation_checkpointing_enable()
        for layer in model.base.model.layers:
            fully_shard(layer)
        fully_shard(model)
        train(model, slice(2 * rank, 2 * rank + 2))
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        model.save_pretrained(out, state_dict=state, is_main_process=rank == 0)
        if rank == 0:
            saved, expected = weights(out), reference.state_dict()
            assert set(saved) == set(expected)
            for key, value in expected.items():
                deviation = DEVIATION if dtype == torch.float32 else BFLOAT16_DEVIATION
                torch.testing.assert_close(saved[key], value, atol=deviation, rtol=1e-5)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.slow
def test_layers_shared_by_two_processes_train_the_same_weights(tmp_path: Path) -> None:
    spawn(train_shards, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    assert len(list(tmp_path.glob("*/context_model.safetensors"))) == len(CASES)
