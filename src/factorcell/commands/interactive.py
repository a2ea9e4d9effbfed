"""Interactive completion in a terminal: it shows suggestions while the user types, and learns each entered line.

This module requires prompt-toolkit, an optional dependency.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from factorcell.commands.cli import terminal
from factorcell.completion.blend import Blend
from factorcell.completion.completer import Completer as RunCompleter
from factorcell.completion.online import User, learn_one
from factorcell.data.private_content import find_private_content
from factorcell.errors import UserError
from factorcell.io.escapes import HIDDEN, escape_hidden
from factorcell.runs.run import Run

PLACEHOLDER = "\N{REPLACEMENT CHARACTER}"


class InteractiveCompleter(Completer):
    """Completer for prompt-toolkit that reuses the search state of the previous keystroke and learns entered lines.

    Attributes:
        user: The user with everything learned from the lines entered so far; None if the completer learns nothing.
        typed_text: The text on the current line, with the search state for it.
    """

    def __init__(
        self, run: Run, suggester: RunCompleter | Blend, user: User | None, context: Mapping[str, str], count: int
    ) -> None:
        self.run, self.suggester, self.user, self.context, self.count = run, suggester, user, context, count
        self.typed_text = suggester.begin(user, context)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """Yield suggestions for a line, each with its score and source; yield none if the line cannot be completed."""
        try:
            self.typed_text = self.suggester.type_text(self.typed_text, document.text)
            suggestions = self.suggester.suggest(self.typed_text, self.count).written(self.run.tokenizer)
        except UserError:
            return
        for suggestion in suggestions:
            score = terminal.format_probability(math.exp(suggestion.log_probability))
            yield Completion(
                suggestion.text,
                start_position=-len(document.text),
                display=escape_hidden(suggestion.text),
                display_meta=f"{score} {suggestion.source}" if suggestion.parts else score,
            )

    def learn_line(self, line: str) -> None:
        """Learn an entered line, and begin the search state for an empty line."""
        if self.user is not None:
            if (label := find_private_content(line)) is not None:
                terminal.notify(f"not learned: the line seems to contain {label}")
            self.user = learn_one(self.run, self.user, line)
        self.typed_text = self.suggester.begin(self.user, self.context)


class HiddenCharacters(Processor):
    """Shows a placeholder for each hidden character, such as a control character, on the current line."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Replace each hidden character by one placeholder, so that positions on the line do not change."""
        fragments = transformation_input.fragments  # tuples of a style, a text and possibly a mouse handler
        # Whether a character is hidden may depend on the previous one, which may be in another fragment.
        texts = [text for _style, text, *_handlers in fragments]
        line = HIDDEN.sub(lambda match: PLACEHOLDER * len(match[0]), "".join(texts))
        boundaries = itertools.pairwise(itertools.accumulate(map(len, texts), initial=0))
        # Only the text of a fragment changes: it keeps its style, the first element, and its mouse handler, if any.
        return Transformation(
            [
                (fragment[0], line[begin:end], *fragment[2:])
                for fragment, (begin, end) in zip(fragments, boundaries, strict=True)
            ]
        )


def read_lines(completer: InteractiveCompleter, **session_options: Any) -> User | None:
    """Read and learn lines until the input ends, and return the user; the options are those of `PromptSession`."""
    session: PromptSession[str] = PromptSession(
        completer=completer,
        complete_while_typing=True,
        complete_in_thread=True,
        input_processors=[HiddenCharacters()],
        **session_options,
    )
    while True:
        try:
            line = session.prompt("> ")
        except EOFError:
            return completer.user
        except KeyboardInterrupt:  # the line is discarded, as in a shell
            continue
        try:
            if line.strip():
                completer.learn_line(line)
        except UserError as error:
            terminal.notify(str(error))
