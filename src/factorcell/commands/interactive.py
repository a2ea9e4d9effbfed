"""Completion in a terminal: suggestions while somebody types; every line that is entered is learned.

Needs prompt-toolkit, an extra: who imports this module has it.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from factorcell.commands import terminal as screen
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer as RunCompleter
from factorcell.completion.online import User, learn_one
from factorcell.config import UserError
from factorcell.escapes import HIDDEN, escape_hidden
from factorcell.model.run import Run

VEIL = "\N{REPLACEMENT CHARACTER}"


class InteractiveCompleter(Completer):
    """Somebody at the terminal: what is typed is kept from one key to the next, who types from one line to the next."""

    def __init__(
        self, run: Run, suggester: RunCompleter | Blend, user: User | None, context: Mapping[str, str], count: int
    ) -> None:
        self.run, self.suggester, self.user, self.context, self.count = run, suggester, user, context, count
        self.written = suggester.begin(user, context)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """The suggestions below a line, with what orders them and whose they are; none where it cannot be completed."""
        try:
            self.written = self.suggester.type(self.written, document.text)
            found = self.suggester.suggest(self.written, self.count).suggestions
        except UserError:
            return
        for one in found:
            share, begin = screen.format_probability(math.exp(one.log_probability)), -len(document.text)
            said = f"{share} {one.source}" if one.parts else share
            yield Completion(one.text, start_position=begin, display=escape_hidden(one.text), display_meta=said)

    def learn_line(self, line: str) -> None:
        """Learn a line, and begin anew."""
        if self.user is not None:
            self.user = learn_one(self.run, self.user, line)
        self.written = self.suggester.begin(self.user, self.context)


class HiddenCharacters(Processor):
    """What stands on the line that is typed, with a sign for each character that `visible` would write out."""

    def apply_transformation(self, given: TransformationInput) -> Transformation:
        """See `Processor`: places on the line stay as they are."""
        line = HIDDEN.sub(lambda found: VEIL * len(found[0]), "".join(part[1] for part in given.fragments))
        places = itertools.accumulate((len(part[1]) for part in given.fragments), initial=0)
        parts = zip(given.fragments, itertools.pairwise(places), strict=True)
        return Transformation([(part[0], line[begin:end], *part[2:]) for part, (begin, end) in parts])


def read_lines(menu: InteractiveCompleter, **terminal: Any) -> User | None:
    """Read lines until the input ends; the user after all of them. `terminal`: an `input` and `output` of its own."""
    session: PromptSession[str] = PromptSession(
        completer=menu,
        complete_while_typing=True,
        complete_in_thread=True,
        input_processors=[HiddenCharacters()],
        **terminal,
    )
    while True:
        try:
            line = session.prompt("> ")
        except EOFError:
            return menu.user
        except KeyboardInterrupt:  # what was typed is dropped, as in a shell
            continue
        try:
            if line.strip():
                menu.learn_line(line)
        except UserError as error:
            screen.notify(str(error))
