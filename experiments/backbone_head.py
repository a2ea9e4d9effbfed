"""The reference of accuracy in the study of backbones: a classification head on the base, fine-tuned with LoRA.

The head is a linear map of the last vector of a text; `transformers` and `peft` implement it. It reads the same number
of tokens in training as the language models, and has as many trained parameters.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from backbone_pretrained import Base, fit_rank, in_float32, local_base, lora_options, values_per_rank
from backbone_training import Rows
from factorcell.io import pretrained

JUDGED_TEXTS = 64


class HeadLearner:
    """A classifier of texts, whose LoRA has the rank that is nearest to `parameters` trained values."""

    def __init__(self, name: str, names: Sequence[str], target: str, parameters: int, like: Base) -> None:
        """Load the base `name`; the device and the precision are those of the base `like`."""
        from peft import get_peft_model

        source, library = pretrained.find_source(local_base(name)), pretrained.transformers()
        with pretrained.quiet():
            model = library.AutoModelForSequenceClassification.from_pretrained(
                source.folder,
                gguf_file=source.gguf_file,
                local_files_only=True,
                num_labels=len(names),
                dtype=like.precision,
            )
        model.config.pad_token_id = like.tokenizer.eos_token_id
        rank = fit_rank(parameters, values_per_rank(model))
        self.module = in_float32(get_peft_model(model, lora_options(rank, "SEQ_CLS")).to(like.device))
        self.base, self.names, self.target = like, list(names), target
        self.rates: Mapping[str, float] = {}

    def loss(self, rows: Rows) -> tuple[Tensor, int]:
        """Return the mean nats of the true values, and the number of tokens of the texts."""
        labels = torch.tensor([self.names.index(row[self.target]) for row in rows], device=self.base.device)
        logits, count = self._logits(rows)
        return F.cross_entropy(logits, labels), count

    @torch.inference_mode()
    def log_posterior(self, rows: Rows) -> NDArray[np.float64]:
        """Return the log probability of each value (B, K)."""
        batches = (rows[start : start + JUDGED_TEXTS] for start in range(0, len(rows), JUDGED_TEXTS))
        return np.concatenate([F.log_softmax(self._logits(batch)[0].double(), 1).cpu().numpy() for batch in batches])

    def _logits(self, rows: Rows) -> tuple[Tensor, int]:
        ids = [[self.base.start, *text] for text in self.base.encode([row["text"] for row in rows])]
        with self.base.autocast():
            logits: Tensor = self.module(**self.base.pad(ids)).logits
        return logits.float(), sum(map(len, ids))
