"""A conversation in the terminal: reads lines and prints answers as they are generated, until
Ctrl-C ends one."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from qwenlab.chat.conversation import Chat
from qwenlab.console import say
from qwenlab.interrupts import held_back
from qwenlab.model.model import Model
from qwenlab.text.chat_template import CLOSE, OPEN
from qwenlab.text.tokenizer import Tokenizer

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
HELP = "/reset starts a new conversation, Ctrl-C ends an answer, Ctrl-D leaves"


def talk(model: Model, tokenizer: Tokenizer, **options: object) -> None:
    """Answers line after line until the input ends; `options` are those of `Chat`. At a terminal, a
    turn that doesn't fit is reported and Ctrl-C only ends the answer; in a pipe, either ends the
    command."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    dim = at_terminal and not os.environ.get("NO_COLOR")
    chat = Chat(model, tokenizer, **options)
    if at_terminal:
        say(HELP)
    for line in typed_lines() if at_terminal else piped_lines():
        if not line.strip():
            continue
        if line.strip() == "/help":
            say(HELP)
        elif line.strip() == "/reset":
            chat = Chat(model, tokenizer, **options)
        elif at_terminal:
            try:
                with held_back() as pressed:
                    answer(chat, line, dim, pressed)
            except ValueError as problem:
                say(problem)
            except KeyboardInterrupt:  # pressed twice: stop in the middle of a step
                pass
        else:
            answer(chat, line, dim, [])


def answer(chat: Chat, text: str, dim: bool, pressed: list[bool]) -> None:
    """Prints the answer to `text` piece by piece until it ends or Ctrl-C is `pressed`. `dim`:
    whether to print its thinking dim."""
    thinking: bool | None = None
    dimmed = False
    pieces = chat.stream(text)
    try:
        for piece in pieces:
            if thinking is None:  # a template may open the thinking itself
                end_of_prompt = chat.tokenizer.decode(chat.requests[0].prompt[-8:])
                thinking = end_of_prompt.rstrip().endswith(OPEN)
            if dim and dimmed != (thinking or OPEN in piece):
                dimmed = not dimmed
                print(DIM if dimmed else PLAIN, end="")
            print(piece, end="", flush=True)
            if OPEN in piece or CLOSE in piece:
                thinking = piece.rfind(OPEN) > piece.rfind(CLOSE)
            if pressed:
                break
    finally:
        pieces.close()
        print(PLAIN if dimmed else "", flush=True)
    if chat.requests[0].finish_reason == "length":
        say(f"cut off after {len(chat.requests[0].token_ids)} tokens")


def typed_lines() -> Iterator[str]:
    """The lines typed at a prompt, until Ctrl-D or Ctrl-C."""
    with suppress(ImportError):
        import readline  # noqa: F401, arrow keys and history for input()
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        yield line


def piped_lines() -> Iterator[str]:
    """The lines of standard input. Raises ValueError naming a line that is not UTF-8."""
    if sys.stdin is None:
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as problem:
            byte = line[problem.start]
            raise ValueError(
                f"standard input line {number}: not UTF-8 text (byte 0x{byte:02x})"
            ) from None
        yield text.rstrip("\r\n")
