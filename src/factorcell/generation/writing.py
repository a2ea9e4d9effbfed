"""Generation of texts token by token, greedily, by sampling or by beam search, for many contexts at once.

A *hypothesis* is an unfinished text. `write_step_by_step` extends each hypothesis by one token. A step of
`search_beams` extends the K best hypotheses of a context by several tokens, the most probable or sampled ones (thesis
2018, section 6.1), and selects the K most probable results. The best finished texts of a context are those with the
highest score:

    score = log p(text) / target_count ** length_penalty

`target_count` is the number of tokens including the end token. With the penalty 1, the best text is the one with the
lowest perplexity; with 0, it is the most probable one, which is usually short.

    p(w) = q(w) ** (1 / temperature) / Z

q(w) is the probability of the token w under the model. A token is sampled with the probability p(w), and Z makes these
probabilities sum to 1. A sampled token is one of the tokens that the constraints allow, among the `top_k` most probable
of them, and in the smallest set of most probable tokens whose probabilities p(w) sum to at least `top_p`.
`kernels.drawing` does the same in compiled code.

Shapes: N unfinished texts, N' or n a selection of them, t tokens of a text, S chosen tokens per text, V vocabulary,
H vector of the backbone, M forbidden pairs, B contexts, K hypotheses per context, L extensions per hypothesis.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from factorcell.data.tokenizers.tokenizer import Specials
from factorcell.ngram.mixture import Predictor
from factorcell.nn.backbones.backbone import BackboneState, Conditions
from factorcell.nn.kernels.drawing import (
    ForbiddenTokens,
    PackedTable,
    SampleRequest,
    TokenRequest,
    TopRequest,
    next_tokens,
)
from factorcell.nn.language_model import Conditioning, LanguageModel
from factorcell.nn.output import ContextBias, SoftmaxHead

# Maximum number of texts whose log probabilities are computed at once, so that they fit into a processor's cache.
MAX_TEXTS_PER_STEP = 64
MAX_TEXTS_PER_BLOCK = 128  # maximum number of texts that the compiled code reads at once


@dataclass(frozen=True)
class Constraints:
    """Constraints on the length and the tokens of a generated text; lengths are without the prompt."""

    max_tokens: int = 100
    min_tokens: int = 0
    banned: tuple[int, ...] = (Specials().unknown,)  # tokens that no text contains
    no_repeat_ngram: int = 0  # no sequence of this many tokens occurs twice in prompt and text; 0: no constraint
    end: int = Specials().end

    def forbid(self, log_probs: Tensor, tokens: Tensor, length: int) -> Tensor:
        """Set `log_probs` (N, V) of forbidden tokens to -inf in place; if all are forbidden, allow the end token."""
        forbidden = self.forbidden_tokens(tokens, length)
        end_log_probs = log_probs[:, self.end].clone()
        log_probs.index_fill_(1, tokens.new_tensor(forbidden.banned), -torch.inf)
        log_probs[forbidden.rows, forbidden.tokens] = -torch.inf
        must_end = torch.isneginf(log_probs.amax(1))  # all tokens are forbidden
        # The end token needs a finite log probability to be chosen.
        log_probs[must_end, self.end] = end_log_probs[must_end].clamp(min=torch.finfo(log_probs.dtype).min)
        return log_probs

    def forbidden_tokens(self, tokens: Tensor, length: int) -> ForbiddenTokens:
        """Return the tokens that are forbidden after the texts `tokens` (N, t), `length` of them after the prompt."""
        rows = next_tokens = tokens.new_zeros(0)
        if self.no_repeat_ngram:
            rows, next_tokens = repeating_tokens(tokens, self.no_repeat_ngram)
        banned = (*self.banned, self.end) if length < self.min_tokens else self.banned
        return ForbiddenTokens(banned, rows, next_tokens, self.end)


def repeating_tokens(tokens: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the next tokens (M,) that would repeat an n-gram of their text, after the rows (M,) of these texts."""
    tokens = tokens[:, 1:]
    ngram_count = tokens.shape[1] - n + 1
    if ngram_count < 1:
        return tokens.new_zeros(0), tokens.new_zeros(0)
    last_tokens = tokens[:, tokens.shape[1] - n + 1 :]  # the n - 1 tokens that begin the next n-gram
    # For each n-gram, whether its first n - 1 tokens are the same as `last_tokens`.
    has_same_start = torch.ones_like(tokens[:, :ngram_count], dtype=torch.bool)
    for offset in range(n - 1):
        has_same_start &= tokens[:, offset : offset + ngram_count] == last_tokens[:, offset, None]
    rows, ngram_starts = has_same_start.nonzero(as_tuple=True)
    return rows, tokens[rows, ngram_starts + n - 1]


def choose_tokens(request: TokenRequest, log_probs: Tensor) -> Tensor:
    """Return the requested tokens (N, S) for log probabilities (N, V), which are -inf for forbidden tokens."""
    if isinstance(request, TopRequest):
        return log_probs.topk(min(request.count, log_probs.shape[1]), dim=1).indices
    return draw_tokens(drawing_weights(request, log_probs), request.places)


def drawing_weights(request: SampleRequest, log_probs: Tensor) -> Tensor:
    """Return the sampling weights (N, V) for `log_probs` (N, V); weights of excluded tokens are 0."""
    if request.temperature != 1:
        tiny = torch.finfo(log_probs.dtype).tiny  # smaller temperatures could underflow to 0
        log_probs = (log_probs - log_probs.amax(1, keepdim=True)) / max(request.temperature, tiny)
    if request.top_k and request.top_k < log_probs.shape[1]:
        min_log_prob = log_probs.topk(request.top_k, dim=1).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < min_log_prob, -torch.inf)
    weights = log_probs.exp()
    if request.top_p == 1:
        return weights
    sorted_weights = weights.sort(dim=1, descending=True).values
    sum_before = sorted_weights.cumsum(1, dtype=torch.double) - sorted_weights  # the sum of all larger weights
    min_sum = request.top_p * weights.sum(1, keepdim=True, dtype=torch.double)
    retained_count = (sum_before < min_sum).sum(1, keepdim=True)
    min_weight = sorted_weights.gather(1, (retained_count - 1).clamp(min=0))
    return weights.masked_fill(weights < min_weight, 0.0)


def draw_tokens(weights: Tensor, places: Tensor) -> Tensor:
    """Return the tokens (N, S) at the `places` (N, S) in [0, 1) of the cumulative sums of the `weights` (N, V)."""
    sums = weights.cumsum(1, dtype=torch.double)
    totals = sums[:, -1:]
    tokens = torch.searchsorted(sums, places * totals, right=True)
    last_token = (sums < totals).sum(1, keepdim=True)  # the last token with a weight; rounding must not exceed it
    return torch.minimum(tokens, last_token)


@dataclass(frozen=True)
class Hypotheses:
    """Unfinished texts, with the state of the model."""

    tokens: Tensor  # of each text, including the start token (N, t)
    context_rows: Tensor  # the row of a `Conditioning` that is the context of each text (N,)
    state: BackboneState | None = None  # before the last token of each text; None: the initial state

    def select(self, rows: Tensor) -> "Hypotheses":
        """Return the texts with the indices `rows` (N',), which may repeat."""
        state = None if self.state is None else self.state.select(rows)
        return Hypotheses(self.tokens[rows], self.context_rows[rows], state)

    def extend(self, tokens: Tensor, state: BackboneState | None, parents: Tensor | None = None) -> "Hypotheses":
        """Return texts, or those at `parents` (N',), with one more token each (N',) and the `state` after these."""
        texts = Hypotheses(self.tokens, self.context_rows, state)
        texts = texts if parents is None else texts.select(parents)
        return Hypotheses(torch.cat([texts.tokens, tokens[:, None]], 1), texts.context_rows, texts.state)


class WritingTask:
    """A request to generate one text in the context of each of the `context_rows` (N,) of a `conditioning`.

    All texts begin with the tokens of `prompt`. Generation ends at `deadline`, a value of `time.monotonic()`, even if
    texts are unfinished.
    """

    def __init__(
        self,
        model: Predictor,
        conditioning: Conditioning,
        context_rows: Tensor,
        constraints: Constraints,
        prompt: Sequence[int] = (),
        deadline: float = math.inf,
    ) -> None:
        self.model, self.conditioning, self.context_rows = model, conditioning, context_rows
        self.constraints, self.prompt, self.deadline = constraints, prompt, deadline
        # The table and the biases for compiled code; None if the model or its head has no compiled form.
        self.table: PackedTable | None = None
        if isinstance(model, LanguageModel) and (table := model.head.pack()) is not None:
            context_bias = cast(ContextBias, conditioning.head)
            if context_bias.bias is None:
                context_bias = cast(SoftmaxHead, model.head).fold(context_bias)
            self.table, self.bias = table, cast(Tensor, context_bias.bias)
        self.cached_blocks: dict[int, tuple[Tensor, Conditions]] = {}  # by block number: context rows, conditions

    def begin(self) -> Hypotheses:
        """Return texts that consist only of the prompt."""
        tokens = self.context_rows.new_tensor([self.model.specials.start, *self.prompt])
        if not self.prompt:
            return Hypotheses(tokens.expand(len(self.context_rows), -1), self.context_rows)
        contexts, positions = torch.unique(self.context_rows, return_inverse=True)
        prompts, state = tokens.expand(len(contexts), -1), None  # each context reads the prompt once
        with torch.inference_mode():
            if self.table is not None:
                _, state = self._read_compiled(Hypotheses(prompts[:, :-1], contexts), len(self.prompt))
            else:
                for length in range(1, len(self.prompt) + 1):
                    texts = Hypotheses(prompts[:, :length], contexts, state)
                    state = _join([step_state for _, _, step_state in self._read(texts)])
        return Hypotheses(prompts, contexts, state).select(positions)

    def choose(self, texts: Hypotheses, request: TokenRequest, length: int) -> tuple[BackboneState, Tensor, Tensor]:
        """Read the last token of each text; return the state, the next tokens (N, S), and their log probabilities."""
        with torch.inference_mode():
            if self.table is not None:
                forbidden = self.constraints.forbidden_tokens(texts.tokens, length)
                vectors, state = self._read_compiled(texts)
                projected = cast(SoftmaxHead, cast(LanguageModel, self.model).head).project(vectors)
                chosen = next_tokens(projected, self.table, self.bias, texts.context_rows, forbidden, request)
                return state, *chosen
            states, tokens, values = [], [], []
            for rows, log_probs, state in self._read(texts):
                self.constraints.forbid(log_probs, texts.tokens[rows], length)
                states.append(state)
                tokens.append(choose_tokens(request.select(rows), log_probs))
                values.append(log_probs.gather(1, tokens[-1]))
            return _join(states), torch.cat(tokens), torch.cat(values)

    def _read(self, texts: Hypotheses) -> Iterator[tuple[Tensor, Tensor, BackboneState]]:
        """Yield, for some texts at a time, their indices (n,), the log probabilities (n, V), and the new state."""
        for rows in torch.split(torch.arange(len(texts.tokens), device=texts.tokens.device), MAX_TEXTS_PER_STEP):
            part = texts.select(rows)
            conditioning = self.conditioning.select(part.context_rows)
            log_probs, state = self.model.step(part.tokens[:, -1], conditioning, part.state)
            yield rows, log_probs, state

    def _read_compiled(self, texts: Hypotheses, count: int = 1) -> tuple[Tensor, BackboneState]:
        """Read the last `count` tokens of each text; return the vectors (N, H) and the state after them."""
        model, vectors, states = cast(LanguageModel, self.model), list[Tensor](), list[BackboneState]()
        for number, rows in enumerate(torch.split(torch.arange(len(texts.tokens)), MAX_TEXTS_PER_BLOCK)):
            block = texts if len(rows) == len(texts.tokens) else texts.select(rows)  # a selection is a copy
            contexts = block.context_rows
            if number not in self.cached_blocks or not torch.equal(self.cached_blocks[number][0], contexts):
                self.cached_blocks[number] = contexts, self.conditioning.conditions.select(contexts)
            state = self.conditioning.start.select(contexts) if block.state is None else block.state
            inputs = model.embedding[block.tokens[:, -count:]]
            block_vectors, new_state = model.backbone.forward(inputs, self.cached_blocks[number][1], state)
            vectors.append(block_vectors[:, -1])
            states.append(new_state)
        return torch.cat(vectors), _join(states)


def _join(states: Sequence[BackboneState]) -> BackboneState:
    first_state, *other_states = states
    return first_state.cat(other_states)


@dataclass(frozen=True)
class GeneratedText:
    """A generated text."""

    tokens: tuple[int, ...]  # after the prompt, without the end token
    log_probability: float  # of the tokens, and of the end token if the model chose it
    target_count: int  # the number of tokens in this log probability
    has_ended: bool  # whether the end token ended the text, and not a limit of tokens or time

    @classmethod
    def of(cls, tokens: Sequence[int], log_probability: float, end: int) -> "GeneratedText":
        """Return the text of `tokens`, which follow the prompt; the last of them may be the token `end`."""
        has_ended = end in tokens[-1:]
        return cls(tuple(tokens[:-1] if has_ended else tokens), log_probability, len(tokens), has_ended)


# Indices of the unfinished texts or contexts, number of the step, hypotheses of each -> request for the next tokens.
RequestTokens = Callable[[Sequence[int], int, int], TokenRequest]


def write_step_by_step(
    task: WritingTask, request_tokens: RequestTokens
) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Yield for each step the indices of the unfinished texts, their next tokens, and the log probabilities."""
    constraints, texts, active = task.constraints, task.begin(), list(range(len(task.context_rows)))
    for step in range(constraints.max_tokens):
        if time.monotonic() >= task.deadline or not active:
            return
        state, tokens, log_probs = task.choose(texts, request_tokens(active, step, 1), step)
        tokens = tokens[:, 0]
        yield active, tokens.tolist(), log_probs[:, 0].double().tolist()
        texts = texts.extend(tokens, state)
        unfinished = (tokens != constraints.end).nonzero()[:, 0]
        if len(unfinished) < len(active):
            texts, active = texts.select(unfinished), [active[row] for row in unfinished.tolist()]


def write_texts(task: WritingTask, request_tokens: RequestTokens) -> list[GeneratedText]:
    """Return one text for each of `task.context_rows`, written token by token."""
    tokens_by_text: list[list[int]] = [[] for _ in range(len(task.context_rows))]
    log_probs = [0.0] * len(tokens_by_text)
    for step in write_step_by_step(task, request_tokens):
        for index, token, log_prob in zip(*step, strict=True):
            tokens_by_text[index].append(token)
            log_probs[index] += log_prob
    texts = zip(tokens_by_text, log_probs, strict=True)
    return [GeneratedText.of(tokens, log_prob, task.constraints.end) for tokens, log_prob in texts]


def search_beams(
    task: WritingTask, request_tokens: RequestTokens, *, width: int, length_penalty: float, num_texts: int
) -> list[list[GeneratedText]]:
    """Return the best `num_texts` texts of each of `task.context_rows` (B,), best first, by beams of `width`."""
    constraints, context_count, device = task.constraints, len(task.context_rows), task.context_rows.device
    finished: list[list[tuple[float, GeneratedText]]] = [[] for _ in range(context_count)]  # scores and texts

    def min_score(context: int) -> float:
        """Return the score that a finished text of a context must exceed."""
        return finished[context][-1][0] if len(finished[context]) == num_texts else -math.inf

    def finish(unfinished: Sequence[int], tokens: Tensor, log_probs: Tensor) -> None:
        """Add the texts with `tokens` (B K, t) whose `log_probs` (B, K) are not -inf to the results."""
        tokens_by_context = tokens.reshape(*log_probs.shape, tokens.shape[1])
        for row, k in (~torch.isneginf(log_probs)).nonzero().tolist():
            text = GeneratedText.of(tokens_by_context[row, k].tolist(), float(log_probs[row, k]), constraints.end)
            score = text.log_probability / max(1, text.target_count) ** length_penalty
            if score > min_score(unfinished[row]):
                texts = sorted([*finished[unfinished[row]], (score, text)], key=lambda scored_text: -scored_text[0])
                finished[unfinished[row]] = texts[:num_texts]

    hypotheses, unfinished = task.begin(), list(range(context_count))
    log_probs = torch.zeros(context_count, 1, dtype=torch.double, device=device)  # of the hypotheses (B, K)
    for step in range(constraints.max_tokens):
        if time.monotonic() >= task.deadline or not unfinished:
            break
        request = request_tokens(unfinished, step, log_probs.shape[1])
        states, tokens, token_log_probs = task.choose(hypotheses, request, step)
        is_duplicate = (tokens[:, :, None] == tokens[:, None, :]).tril(-1).any(2)  # of an earlier token of its row
        token_log_probs = token_log_probs.double().masked_fill(is_duplicate, -torch.inf)
        extended = (log_probs.view(-1, 1) + token_log_probs).view(len(log_probs), -1)  # of all extensions (B, K L)
        tokens_by_context = tokens.view(len(log_probs), -1)
        is_end = tokens_by_context == constraints.end
        continued = extended.masked_fill(is_end, -torch.inf).topk(min(width, extended.shape[1]), dim=1)
        ended = extended.masked_fill(~is_end, -torch.inf).topk(min(num_texts, extended.shape[1]), dim=1)
        first_rows = torch.arange(len(log_probs), device=device)[:, None] * log_probs.shape[1]
        parents = hypotheses
        for extensions, extended_states in ((ended, None), (continued, states)):  # a state is a large copy
            parent_rows = (first_rows + extensions.indices // tokens.shape[1]).flatten()
            last_tokens = tokens_by_context.gather(1, extensions.indices).flatten()
            hypotheses = parents.extend(last_tokens, extended_states, parent_rows)
            if extensions is ended:
                finish(unfinished, hypotheses.tokens[:, -step - 1 :], ended.values)
        log_probs = continued.values
        # An upper bound of the scores that a context can reach: log p never rises, and a text has at most
        # max_tokens + 1 targets. The search of a context ends when the bound does not exceed its `min_score`.
        max_scores = log_probs.amax(1) / (constraints.max_tokens + 1) ** length_penalty
        min_scores = log_probs.new_tensor([min_score(context) for context in unfinished])
        active = (max_scores > min_scores).nonzero()[:, 0]
        if len(active) < len(unfinished):
            rows = active[:, None] * log_probs.shape[1] + torch.arange(log_probs.shape[1], device=device)
            hypotheses = hypotheses.select(rows.flatten())
            unfinished, log_probs = [unfinished[row] for row in active.tolist()], log_probs[active]
    # The remaining texts have reached the limit of tokens or of time.
    finish(unfinished, hypotheses.tokens[:, len(task.prompt) + 1 :], log_probs)
    return [[text for _, text in best_texts] for best_texts in finished]
