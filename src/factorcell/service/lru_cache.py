"""A thread-safe cache that drops the least recently used values."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A cache with at most `max_size` keys and their values."""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.max_size:
                self._values.popitem(last=False)

    def drop(self, condition: Callable[[K], bool] = lambda key: True) -> None:
        """Drop the values whose key satisfies `condition`, by default all."""
        with self._lock:
            for key in [key for key in self._values if condition(key)]:
                del self._values[key]
