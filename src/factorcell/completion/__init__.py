"""Completion of texts while they are typed, and online learning of users."""

from typing import TYPE_CHECKING

from factorcell.lazy import lazy

if TYPE_CHECKING:
    from factorcell.completion.blend import Blend, suggester
    from factorcell.completion.completer import Completer
    from factorcell.completion.fuzzy import Forgiving
    from factorcell.completion.online import Learner, LearningRule, User, learn_one
    from factorcell.completion.popularity import History, Popularity

__all__ = [
    "Blend",
    "Completer",
    "Forgiving",
    "History",
    "Learner",
    "LearningRule",
    "Popularity",
    "User",
    "learn_one",
    "suggester",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "blend": ("Blend", "suggester"),
        "completer": ("Completer",),
        "fuzzy": ("Forgiving",),
        "online": ("Learner", "LearningRule", "User", "learn_one"),
        "popularity": ("History", "Popularity"),
    },
)
