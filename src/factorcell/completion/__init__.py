"""Completion of texts while they are typed, and online learning of users."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.completion.assistant import Assistant
    from factorcell.completion.blend import Blend
    from factorcell.completion.completer import Completer
    from factorcell.completion.fuzzy import Forgiving
    from factorcell.completion.online import Learner, LearningRule, User, learn_one
    from factorcell.completion.popularity import History, Popularity

__all__ = [
    "Assistant",
    "Blend",
    "Completer",
    "Forgiving",
    "History",
    "Learner",
    "LearningRule",
    "Popularity",
    "User",
    "learn_one",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "assistant": ("Assistant",),
        "blend": ("Blend",),
        "completer": ("Completer",),
        "fuzzy": ("Forgiving",),
        "online": ("Learner", "LearningRule", "User", "learn_one"),
        "popularity": ("History", "Popularity"),
    },
)
