"""Completion of texts while users type them, and online learning of users."""

from typing import TYPE_CHECKING

from factorcell.io.lazy import lazy_exports

if TYPE_CHECKING:
    from factorcell.completion.blend import Blend as Blend
    from factorcell.completion.completer import Completer as Completer
    from factorcell.completion.online import Learner as Learner
    from factorcell.completion.online import LearningRule as LearningRule
    from factorcell.completion.online import User as User
    from factorcell.completion.online import learn_one as learn_one
    from factorcell.completion.popularity import History as History
    from factorcell.completion.popularity import Popularity as Popularity

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
