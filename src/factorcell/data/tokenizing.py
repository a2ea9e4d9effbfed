"""Split the texts of a table into tokens, a chunk of rows at a time, in this process or in several.

The ids of a chunk depend only on its texts, and the caller numbers the tokens of chunks in the order of the table.
Therefore the number of processes does not change the result. Worker processes import only this module, so that it
must not import PyTorch.
"""

import hashlib
import multiprocessing
import os
import signal
import threading
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from factorcell.data.tokenizers.tokenizer import Tokenizer
from factorcell.errors import UserError
from factorcell.io.memory import PROCESSES_VARIABLE, worker_count

START, END = 1, 2  # provisional ids; 0 is the unknown token
SEQUENTIAL_CHUNKS = 16  # shorter tables are split before worker processes would have started
CHUNKS_PER_PROCESS = 2  # chunks that wait for each process


@dataclass(frozen=True)
class TokenizedChunk:
    """The tokens of the texts of a chunk."""

    tokens: list[str]  # the distinct tokens in order of appearance, including those after cuts
    ids: NDArray[np.uint32]  # of each text: `START`, the index of each token in `tokens` plus `END` + 1, and `END`
    sizes: NDArray[np.int64]  # the number of ids of each text
    cut_counts: dict[int, int]  # how often each id occurs after the cuts
    originals: NDArray[np.uint64] | None  # as in `Corpus`


def tokenize(tokenizer: Tokenizer, max_tokens: int | None, texts: Sequence[str]) -> TokenizedChunk:
    """Split texts; a text of `max_tokens` tokens or more is cut after `max_tokens` tokens and has no end token."""
    id_by_token: defaultdict[str, int] = defaultdict(lambda: len(id_by_token) + END + 1)
    ids, sizes, cut_counts, id_of = array("I"), list[int](), Counter[int](), id_by_token.__getitem__
    for tokens in tokenizer.split_all(texts):
        begin = len(ids)
        ids.append(START)
        if max_tokens is None or len(tokens) < max_tokens:
            ids.extend(map(id_of, tokens))
            ids.append(END)
        else:
            ids.extend(map(id_of, tokens[:max_tokens]))
            cut_counts.update(map(id_of, tokens[max_tokens:]))
        sizes.append(len(ids) - begin)
    originals = None
    if tokenizer.is_lossless:
        contents = [tokenizer.normalize(text).encode("utf-8", "surrogatepass") for text in texts]
        originals = np.stack([np.array([*map(len, contents)], np.uint64), digests(contents)], axis=1)
    return TokenizedChunk(
        list(id_by_token), np.array(ids, np.uint32), np.array(sizes, np.int64), dict(cut_counts), originals
    )


def digests(contents: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return a 64-bit digest of each item."""
    joined = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(joined, "<u8")  # little-endian on every machine


def _end_with_parent() -> None:
    """Let a worker process ignore Ctrl-C, which its parent handles, and end when its parent has been killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


class ChunkTokenizer:
    """Splits chunks of texts in `worker_count` processes, and returns them in their order.

    A tokenizer with a vocabulary splits in this process: it would have to be sent with each chunk, and `tokenizers`
    uses threads.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.tokenizer, self.max_tokens, self.chunk_count = tokenizer, max_tokens, 0
        is_trained = len(tokenizer) > len(set(tokenizer.specials))
        self.worker_count = 1 if is_trained else worker_count()
        self._pool: ProcessPoolExecutor | None = None
        self._results = deque[Future[TokenizedChunk]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def add(self, texts: Sequence[str]) -> Iterator[TokenizedChunk]:
        """Split the texts of a chunk, and yield the chunks that are ready: this one, or earlier ones."""
        self.chunk_count += 1
        if self.worker_count == 1 or self.chunk_count <= SEQUENTIAL_CHUNKS:
            yield tokenize(self.tokenizer, self.max_tokens, texts)
            return
        if self._pool is None:
            # A forked process could wait forever for a lock that a thread of this process had.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.worker_count, context, initializer=_end_with_parent)
        self._results.append(self._pool.submit(tokenize, self.tokenizer, self.max_tokens, texts))
        yield from self.finish(max(0, len(self._results) - CHUNKS_PER_PROCESS * self.worker_count))

    def finish(self, count: int | None = None) -> Iterator[TokenizedChunk]:
        """Yield the next `count` chunks, by default all that were added."""
        try:
            for _ in islice(range(len(self._results)), count):
                yield self._results.popleft().result()
        except BrokenProcessPool:
            hint = f"a script needs `if __name__ == '__main__':`; {PROCESSES_VARIABLE}=1 uses no other process"
            raise UserError(f"a process that splits texts has died, maybe because memory was short; {hint}") from None
