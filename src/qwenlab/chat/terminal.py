"""A conversation in the terminal: reads lines, shows answers as they come, and lets
Ctrl-C end one."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from qwenlab.chat.conversation import Chat
from qwenlab.console import say
from qwenlab.interrupts import held_back
from qwenlab.text.chat_template import CLOSE, OPEN

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HELP = "/reset starts a new conversation, Ctrl-C ends an answer, Ctrl-D leaves"


def talk(model, tokenizer, **options) -> None:
    """Answers line after line until the input ends. At a terminal a turn that doesn't fit ends
    nothing, and Ctrl-C ends an answer; in a pipe either ends all, as with any command."""
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
            except KeyboardInterrupt:  # pressed again: the pass was not waited for
                pass
        else:
            answer(chat, line, dim, [])


def answer(chat: Chat, text: str, dim: bool, pressed: list) -> None:
    """Shows the answer to `text` piece by piece, its thinking dim, until it ends or something is in
    `pressed`."""
    thinking, dimmed, pieces = None, False, chat.stream(text)
    try:
        for piece in pieces:
            if thinking is None:  # a template may open the thinking itself
                thinking = (
                    chat.tokenizer.decode(chat.requests[0].prompt[-8:]).rstrip().endswith(OPEN)
                )
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
    """What is typed behind a prompt, until Ctrl-D or Ctrl-C."""
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
    """The lines of standard input. Raises ValueError, naming the line, for one that
    is not UTF-8."""
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
