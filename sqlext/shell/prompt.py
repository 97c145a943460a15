"""The input line: keys, colours, completion, history, and below it a toolbar with what runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from prompt_toolkit.patch_stdout import patch_stdout

from sqlext.shell import meta
from sqlext.shell.lexer import STYLE, SqlextLexer
from sqlext.sql.scripts import is_complete


def is_done(text: str) -> bool:
    """Return whether Enter runs a text or begins its next line: statements end with `;`, the shell's commands with the line."""
    return meta.is_command(text) or is_complete(text)


class Prompt:
    """The prompt for statements. Only the main thread uses it, except for `end`, which a signal handler may call.

    Args:
        toolbar: returns the text below the line; called every second.
        must_end: returns whether the process ends, so that nothing more is read.
        source, sink: replacements of the terminal, for tests.
    """

    def __init__(
        self,
        completer: Completer,
        history: History,
        toolbar: Callable[[], str],
        must_end: Callable[[], bool],
        source: Input | None = None,
        sink: Output | None = None,
    ) -> None:
        self._must_end = must_end
        self._session: PromptSession[str] = PromptSession(
            completer=completer,
            complete_while_typing=False,  # only Tab completes, as in psql: names may have to be read from storage
            history=history,
            lexer=PygmentsLexer(SqlextLexer),
            style=STYLE,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=lambda width, _line, _is_wrapped: "-> ".rjust(width),
            bottom_toolbar=toolbar,
            refresh_interval=1.0,
            enable_open_in_editor=True,  # Ctrl-X Ctrl-E
            tempfile_suffix=".sql",
            input=source,
            output=sink,
        )

    def read(self, label: str) -> str:
        """Return what was typed. Meanwhile errors of flows are printed above the line.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D, or `end` was called.
        """
        with patch_stdout(raw=True):
            return self._session.prompt(label, pre_run=self._end_if_asked)

    def end(self) -> None:
        """Make `read` raise EOFError."""
        app = self._session.app
        if app.loop is not None and app.is_running:
            app.loop.call_soon_threadsafe(self._end_if_asked)

    def _end_if_asked(self) -> None:
        if self._must_end() and not self._session.app.is_done:
            with suppress(Exception):  # it has just ended otherwise
                self._session.app.exit(exception=EOFError())


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # the text has the completion already
        elif is_done(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    return keys
