"""Text from a model, ids only: over anything that has `step`."""

from dataclasses import replace

import torch
from torch import Tensor

from factorcell.model import Conditioned, LanguageModel
from factorcell.vocabulary import END, START, UNKNOWN


def sample(
    model: LanguageModel,
    conditioned: Conditioned,
    count: int,
    *,
    most: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[list[int]]:
    """`count` texts drawn from the model, one for each row of `conditioned`, at most `most` tokens long.

    The unknown token is never drawn. A low `temperature` prefers what is probable.
    """
    generator = torch.Generator().manual_seed(seed)  # of the processor, so that all devices draw alike
    device = model.embedding.device
    token, state = torch.full((count,), START, device=device), None
    texts: list[Tensor] = []
    with torch.inference_mode():
        conditioned = replace(conditioned, tilt=model.output.fold(conditioned.tilt))  # once, not at every step
        for _ in range(most):
            logs, state = model.step(token, conditioned, state)
            logs[:, UNKNOWN] = -torch.inf
            drawn = torch.multinomial((logs / temperature).softmax(1).cpu(), 1, generator=generator)[:, 0]
            texts.append(drawn)
            token = drawn.to(device)
    rows = torch.stack(texts, dim=1).tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]
