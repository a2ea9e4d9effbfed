"""Tiny pretrained models of `transformers` with random weights and tokenizers, which need no network."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZE = 16  # numbers per vector
MAX_POSITIONS = 64


def write_pretrained(
    folder: Path, texts: Iterable[str], architecture: str = "llama", vocabulary: int = 300, padding: int = 0
) -> Path:
    """Write a causal language model of two layers, and a tokenizer of bytes that is trained on `texts`.

    Args:
        folder: The folder to write.
        texts: The texts from which the tokenizer learns.
        architecture: gpt2 or llama.
        vocabulary: The number of tokens.
        padding: The number of rows of the table of embeddings that belong to no token.
    """
    tokenizer = write_tokenizer(folder, texts, vocabulary)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer) + padding, "bos_token_id": 0, "eos_token_id": 0}
    if architecture == "gpt2":
        config: Any = transformers.GPT2Config(n_embd=SIZE, n_layer=2, n_head=2, n_positions=MAX_POSITIONS, **sizes)
    else:
        config = transformers.LlamaConfig(
            hidden_size=SIZE,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=24,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            **sizes,
        )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path, texts: Iterable[str], vocabulary: int) -> Any:
    """Write and return a tokenizer of bytes with one special token, as that of GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    wrapped.save_pretrained(folder)
    return wrapped
