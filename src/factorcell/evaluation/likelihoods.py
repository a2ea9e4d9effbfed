"""The likelihoods of texts in candidate contexts, log p(text given candidate), on which classification is based.

Shapes: B texts, K candidates, C categorical variables, N numeric variables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from factorcell.config import NAMES
from factorcell.data.columns.context import Context
from factorcell.data.columns.schema import Variable
from factorcell.data.columns.values import category_name, to_number
from factorcell.data.corpus import Batch, Corpus
from factorcell.errors import UserError, check_choice
from factorcell.io import memory
from factorcell.io.progress import progress_bar
from factorcell.ngram.mixture import Predictor
from factorcell.nn.language_model import Conditioning, LanguageModel
from factorcell.nn.output import Proposal, Samples
from factorcell.options import limits
from factorcell.options.limits import PROPOSALS
from factorcell.runs.run import MAX_BATCH_TOKENS, Run

Floats = NDArray[np.float64]
Candidates = tuple[Tensor, Tensor]  # categories (K, C) and numbers (K, N), with -2 and infinity for absent variables


def log_likelihoods(
    run: Run, corpus: Corpus, candidates: Sequence[Mapping[str, Any]], *, samples: int = 0, proposal: str = "rank"
) -> Floats:
    """Compute log p(text given candidate).

    Args:
        run: An adapted run.
        corpus: The texts, as `run` has prepared them.
        candidates: A dict from variable to value for each candidate (K), such as `{"stars": "5"}`. For variables that
            the dict lacks, each text keeps its own values.
        samples: The number of tokens sampled from the vocabulary for the softmax; 0 computes the exact softmax.
        proposal: The distribution to sample from: "unigram" (training frequencies) or "rank" (vocabulary ranks).

    Returns:
        The log likelihoods in nats (B, K).

    Raises:
        UserError: The run is not adapted (all candidates would be equally likely), a candidate has an unknown variable
            or value, or the run also reads the column of a candidate as text.
    """
    [samples] = limits.check(samples=samples)
    check_choice("proposal", proposal, PROPOSALS)
    if not candidates:
        raise UserError("candidates: expected at least one, got none")
    check_adapted(run)
    for candidate in candidates:
        _check_not_revealed(run, candidate)
    predictor, encoded = _predictor(run, candidates), _encode_candidates(run, candidates)
    if samples and predictor is not run.model:
        raise UserError(f"{run.folder.name}: its n-gram mixture computes exact probabilities; omit --samples")
    sampled_tokens = draw_samples(run, samples, proposal) if samples else None
    log_probs, shared_conditioning = np.zeros((len(corpus), len(candidates))), None
    is_kept = (encoded[0] == -2).any(0), (encoded[1] == torch.inf).any(0)
    other_categories, other_numbers = (variables.cpu().numpy() for variables in is_kept)
    other_values = np.concatenate([corpus.categories[:, other_categories], corpus.numbers[:, other_numbers]], axis=1)
    # If the texts differ in no other context value, each candidate has one context, which is computed only once.
    has_other_kinds = bool(corpus.words or corpus.prompts or corpus.vectors)
    has_one_context = not has_other_kinds and len(np.unique(other_values, axis=0)) == 1
    max_texts = run.model.texts_at_once  # of each with one candidate
    bar = progress_bar(total=log_probs.size, desc="classifying", unit="likelihoods")
    with bar, run.scoring():
        if has_one_context and len(candidates) <= max_texts:
            context = corpus.context(np.zeros(1, dtype=np.int64)).to(run.device)
            shared_conditioning = predictor.condition(_candidate_contexts(context, encoded))
        # Batches of texts are small enough to be repeated for up to 64 candidates within both limits.
        repetitions = min(len(candidates), 64, max_texts)
        for rows in corpus.batches(max(1, MAX_BATCH_TOKENS // repetitions), max_texts=max_texts // repetitions):
            batch = run.batch(corpus, rows)
            fitting_count = min(MAX_BATCH_TOKENS // (batch.tokens.shape[1] * len(rows)), max_texts // len(rows))
            for indices in torch.split(torch.arange(len(candidates), device=run.device), max(1, fitting_count)):
                conditioning = shared_conditioning.select(indices) if shared_conditioning else None
                categories, numbers = (values[indices] for values in encoded)
                nats = _candidate_nats(predictor, batch, (categories, numbers), conditioning, sampled_tokens)
                log_probs[rows[:, None], indices.cpu().numpy()] = -nats
                bar.update(nats.size)
    return log_probs


def draw_samples(run: Run, count: int, proposal: str = "rank", seed: int = 0) -> Samples:
    """Draw `count` tokens for all texts with replacement (Jean et al. 2015); return the distinct ones.

    `proposal` is "unigram" (frequencies in training, as in the papers) or "rank" (ranks in the vocabulary).
    """
    memory.check(24 * count, f"{count:,} samples")  # 24 bytes per sample
    if proposal == "unigram":
        token_counts = run.unigram_counts().clamp(min=1)  # a token that was never a target has count 1
        token_counts[run.tokenizer.specials.start] = 0
        proposal_distribution = Proposal(token_counts, count, run.device)
    else:
        proposal_distribution = Proposal.by_rank(run.tokenizer, count, run.device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return proposal_distribution.draw()


def _predictor(run: Run, candidates: Sequence[Mapping[str, Any]]) -> Predictor:
    """Return the mixture of a run; the neural model if the mixture counts by a column that a candidate does not set.

    Counts that are equal for all candidates hide the differences that the neural model finds.
    """
    counted = None if run.mixture is None or not run.mixture.counts.orders else run.mixture.counts.variable
    return run.predictor if counted is None or all(counted.name in each for each in candidates) else run.model


def _candidate_nats(
    predictor: Predictor,
    batch: Batch,
    candidates: Candidates,
    conditioning: Conditioning | None,
    samples: Samples | None,
) -> Floats:
    """Return the nats (B, K) of B texts given each of K candidates, computed as one batch of B * K texts."""
    text_count, candidate_count = len(batch.rows), len(candidates[0])
    context_of_row = torch.arange(candidate_count, device=predictor.device).repeat(text_count)
    contexts = _candidate_contexts(batch.context, candidates)
    if conditioning is None:
        distinct_contexts, context_of_row = contexts.distinct()
        conditioning = predictor.condition(distinct_contexts)
    text_of_row = torch.arange(text_count, device=predictor.device).repeat_interleave(candidate_count)
    repeated_batch = Batch(batch.tokens[text_of_row], batch.lengths[text_of_row], contexts, batch.rows[text_of_row])
    row_conditioning = conditioning.select(context_of_row)
    if samples is not None and isinstance(predictor, LanguageModel):
        nats = predictor.sampled_nats(repeated_batch, samples, conditioning=row_conditioning)
    else:
        nats = predictor(repeated_batch, row_conditioning)
    nats_of_texts: Floats = nats.double().sum(1).view(text_count, candidate_count).cpu().numpy()
    return nats_of_texts


def _encode_candidates(run: Run, candidates: Sequence[Mapping[str, Any]]) -> Candidates:
    categories = torch.full((len(candidates), len(run.schema.categories)), -2)
    numbers = torch.full((len(candidates), len(run.schema.numbers)), torch.inf)
    for row, candidate in enumerate(candidates):
        for name, value in candidate.items():
            variable = run.schema.variable(name)
            if variable.kind == "category":
                category = category_name(value)
                check_value(run, variable, category, variable.values)
                categories[row, run.schema.categories.index(variable)] = variable.values.index(category)
            elif variable in run.schema.numbers:
                number = to_number(value)
                if number is None:
                    raise UserError(f"{name}: expected a number, got {value!r}")
                number = number % variable.period if variable.period else number
                numbers[row, run.schema.numbers.index(variable)] = number
            else:
                raise UserError(f"{name}: expected a category or a number, got a variable of kind {variable.kind}")
    return categories.to(run.device), numbers.to(run.device)


def _candidate_contexts(context: Context, candidates: Candidates) -> Context:
    """Return B * K contexts: for each of B texts in turn, its context with the values of each of K candidates."""
    categories, numbers = (values.repeat(len(context), 1) for values in candidates)
    text_indices = torch.arange(len(context), device=categories.device)
    repeated_contexts = context.select(text_indices.repeat_interleave(len(candidates[0])))
    return replace(
        repeated_contexts,
        categories=torch.where(categories == -2, repeated_contexts.categories, categories),
        numbers=torch.where(numbers == torch.inf, repeated_contexts.numbers, numbers),
    )


def _check_not_revealed(run: Run, candidate: Mapping[str, Any]) -> None:
    """Raise a `UserError` if the run also reads a column of a candidate as another kind, which would keep its value."""
    for name in candidate:
        column, is_category = run.schema.variable(name).source_column, run.schema.variable(name).kind == "category"
        for variable in run.schema.variables:
            is_text = variable.kind in ("prompt", "text")
            if variable.source_column == column and variable.name not in candidate and (is_text or is_category):
                remedy = f"with the adapter {NAMES} instead of" if is_text else "without"
                raise UserError(
                    f"{name}: {run.folder.name} also reads the column {column} as {variable.kind}, which would reveal "
                    f"the answer; train {remedy} the kind {variable.kind}"
                )


def check_adapted(run: Run) -> None:
    """Raise a `UserError` unless the context changes the probabilities of a run."""
    if not run.model.is_adapted:
        hint = "all contexts give a text the same probability; use an adapted run"
        raise UserError(f"{run.folder.name} is not adapted: {hint}")


def check_value(run: Run, variable: Variable, name: str, valid_names: Sequence[str]) -> None:
    """Raise a `UserError` unless `name` is one of `valid_names`; its message does not list names of users."""
    if variable.source_column != run.config.data.user:
        check_choice(f"value of {variable.name}", name, valid_names)
    elif name not in valid_names:
        raise UserError(f"unknown value of {variable.name} {name!r}; the run has {len(variable.values) - 1:,} values")
