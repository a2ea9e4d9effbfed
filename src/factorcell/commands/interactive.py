"""Interactive completion in a terminal; it requires prompt-toolkit, an optional dependency."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from factorcell.commands.cli import terminal
from factorcell.completion.completer import Completer as RunCompleter
from factorcell.completion.online import User, learn_one
from factorcell.data.private_content import find_private_content
from factorcell.errors import UserError
from factorcell.io.output import escape_hidden
from factorcell.runs.run import Run


class InteractiveCompleter(Completer):
    """Shows suggestions while the user types, and learns each entered line; `user` has learned the lines so far."""

    def __init__(
        self, run: Run, suggester: RunCompleter, user: User | None, context: Mapping[str, str], count: int
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
        """Learn an entered line, and begin an empty one."""
        if self.user is not None:
            if (label := find_private_content(line)) is not None:
                terminal.notify(f"not learned: the line seems to contain {label}")
            self.user = learn_one(self.run, self.user, line)
        self.typed_text = self.suggester.begin(self.user, self.context)


def read_lines(completer: InteractiveCompleter, **session_options: Any) -> None:
    """Read and learn lines until the input ends; the options are those of `PromptSession`."""
    session: PromptSession[str] = PromptSession(
        completer=completer, complete_while_typing=True, complete_in_thread=True, **session_options
    )
    while True:
        try:
            line = session.prompt("> ")
            if line.strip():
                completer.learn_line(line)
        except EOFError:
            return
        except KeyboardInterrupt:  # the line is discarded, as in a shell
            continue
        except UserError as error:
            terminal.notify(str(error))
