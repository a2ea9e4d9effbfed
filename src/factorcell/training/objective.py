"""The nats of texts that training minimises, exact or against negative samples.

Shapes: B texts, T targets of the longest.
"""

from torch import Tensor, nn

from factorcell.data.corpus import Batch
from factorcell.model.language_model import LanguageModel
from factorcell.model.output import Picked, Reads, Samples


class Objective(nn.Module):
    """The nats that training minimises, as a `forward` of its own: there gradients of several processes meet."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        batch: Batch,
        samples: Samples | None,
        reads: Reads | None = None,
        picked: Picked | None = None,
        learned: Tensor | None = None,
    ) -> Tensor:
        """Nats (B, T), exact or against `samples`, 0 but at the targets `learned` (B, T).

        `reads` and `picked` as `LanguageModel.sampled`.
        """
        nats: Tensor = self.model(batch) if samples is None else self.model.sampled(batch, samples, reads, picked)
        return nats if learned is None else nats * learned
