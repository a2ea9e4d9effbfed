"""The reference of accuracy in the study of backbones: a classification head on the base, fine-tuned with LoRA.

The head is a linear map of the last vector of a text; `transformers` and `peft` implement it. It reads the same number
of tokens in training as the language models, and has as many trained parameters.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import backbone_measures
import corpora
from backbone_tables import DataSet
from corpora import Tables
from factorcell.config import Config
from factorcell.evaluation.bayes_rule import apply_bayes_rule
from factorcell.io import pretrained
from factorcell.nn.backbones.adapted_modules import linear_maps
from factorcell.nn.devices import find_device
from study import Measurement

JUDGED_TEXTS, TOKENS_PER_TEXT = 64, 32
Batch = dict[str, torch.Tensor]


def measure_head(config: Config, texts: Tables, data_set: DataSet, tokens: int, parameters: int) -> Measurement:
    """Train a head for about `tokens` tokens with about `parameters` trained values, and measure its accuracy."""
    names, truth, _ = backbone_measures.candidates(texts)
    source = pretrained.find_source(config.backbone.base)  # type: ignore[attr-defined]
    device = find_device(config.training.device, config.backbone)
    torch.manual_seed(config.training.seed)
    tokenizer, model = load(source, len(names), parameters, device)
    train = corpora.read(texts["train"]).select(["text", data_set.target]).to_pylist()
    labelled = [(row["text"], names.index(row[data_set.target])) for row in train if row[data_set.target] in names]
    started = time.monotonic()
    train_head(model, tokenizer, labelled, config, tokens, device)
    minutes = (time.monotonic() - started) / 60
    judged = [row["text"] for row in backbone_measures.judged_rows(texts, data_set.target)]
    log_posterior = np.concatenate(list(predict(model, tokenizer, judged, device)))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    measured = backbone_measures.measure_classification(apply_bayes_rule(names, log_posterior, truth))
    return Measurement({"trained_parameters": trained, "minutes": minutes}) | measured


def load(source: pretrained.Source, labels: int, parameters: int, device: torch.device) -> tuple[Any, Any]:
    """Return the tokenizer and the model, whose LoRA has the rank that is nearest to `parameters` trained values."""
    from peft import LoraConfig, get_peft_model

    library = pretrained.transformers()
    with pretrained.quiet():
        files = {"gguf_file": source.gguf_file, "local_files_only": True}
        tokenizer = library.AutoTokenizer.from_pretrained(source.folder, **files)
        model = library.AutoModelForSequenceClassification.from_pretrained(
            source.folder, num_labels=labels, dtype=torch.float32, **files
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    model.config.pad_token_id = tokenizer.pad_token_id
    maps = list(linear_maps(model.base_model))
    per_rank = sum(sum(linear.weight.shape) for _, _, linear in maps)  # type: ignore[misc, arg-type]
    rank = max(1, round(parameters / per_rank))
    names = sorted({path.rpartition(".")[2] for _, path, _ in maps})
    options = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules=names)
    return tokenizer, get_peft_model(model, options).to(device)


def encode(tokenizer: Any, texts: Sequence[str], device: torch.device) -> Batch:
    return dict(tokenizer(list(texts), return_tensors="pt", padding=True).to(device))


def train_head(
    model: Any, tokenizer: Any, labelled: Sequence[tuple[str, int]], config: Config, tokens: int, device: torch.device
) -> None:
    """Train by AdamW with a linearly falling learning rate, until `tokens` tokens are read."""
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=config.training.learning_rate / 3
    )
    random, read, model = np.random.default_rng(config.training.seed), 0, model.train()
    batch_texts = min(len(labelled), max(1, config.training.batch_tokens // TOKENS_PER_TEXT))
    initial_rates = [group["lr"] for group in optimizer.param_groups]
    while read < tokens:
        rows = [labelled[place] for place in random.choice(len(labelled), batch_texts, False)]
        batch = encode(tokenizer, [text for text, _ in rows], device)
        for group, rate in zip(optimizer.param_groups, initial_rates, strict=True):
            group["lr"] = rate * (1 - read / tokens)
        loss = F.cross_entropy(model(**batch).logits.float(), torch.tensor([label for _, label in rows], device=device))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        read += int(batch["attention_mask"].sum())
    model.eval()


def predict(model: Any, tokenizer: Any, texts: Sequence[str], device: torch.device) -> Iterator[Any]:
    """Yield the log probabilities (B, K) of batches of texts."""
    with torch.inference_mode():
        for start in range(0, len(texts), JUDGED_TEXTS):
            logits = model(**encode(tokenizer, texts[start : start + JUDGED_TEXTS], device)).logits
            yield F.log_softmax(logits.double(), dim=1).cpu().numpy()
