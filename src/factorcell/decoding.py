"""Text from a model, ids only: over anything that has `step`."""

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
    generator = torch.Generator().manual_seed(seed)
    token, state = torch.full((count,), START), None
    texts: list[Tensor] = []
    with torch.inference_mode():
        for _ in range(most):
            logs, state = model.step(token, conditioned, state)
            logs[:, UNKNOWN] = -torch.inf
            token = torch.multinomial((logs / temperature).softmax(1), 1, generator=generator)[:, 0]
            texts.append(token)
    drawn = torch.stack(texts, dim=1).tolist()
    return [row[: row.index(END)] if END in row else row for row in drawn]
