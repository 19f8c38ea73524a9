"""`qwenlab chat`: at a terminal and in a pipe, with Ctrl-C, and one line for whatever is wrong."""

import contextlib
import io
import os
import re
import select
import sys
import time

import psutil
import pytest
from forks import Forked, run_command
from small_checkpoint import write_small_checkpoint

import qwenlab
from qwenlab.chat import terminal
from qwenlab.cli.main import main

with contextlib.suppress(ImportError):  # not on Windows
    import pty
ANSWER = "<think>\n12+5=17\n</think>\n\n\\boxed{17}\n"


@pytest.fixture
def piped(capsys, monkeypatch):
    """Runs the command on the bytes of a pipe; returns its status, stdout and stderr."""

    def run(given, *arguments):
        monkeypatch.setattr(
            sys, "stdin", None if given is None else io.TextIOWrapper(io.BytesIO(given))
        )
        with pytest.raises(SystemExit) as end:
            main(["chat", *map(str, arguments)])
        return end.value.code, *capsys.readouterr()

    return run


def chat_at(terminal, *arguments):
    """The command with a terminal for itself: the first that a new session opens is its own."""
    os.setsid()
    opened = os.open(terminal, os.O_RDWR)
    for number in range(3):
        os.dup2(opened, number)
    sys.stdin = open(0, closefd=False, encoding="utf-8")
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = open(2, "w", closefd=False, encoding="utf-8")
    main(["chat", *map(str, arguments)])


class Terminal:
    """The command at a terminal of its own, so that Ctrl-C is a key."""

    def __init__(self, folder, *arguments, **variables):
        if not hasattr(os, "setsid"):
            pytest.skip("needs os.setsid, for a terminal of its own")
        self.keys, screen = pty.openpty()
        self.shown = b""
        variables = {"TERM": "dumb", "NO_COLOR": None} | variables
        place = (os.ttyname(screen), *arguments)
        self.process = Forked(chat_at, *place, folder=folder, variables=variables).process
        self.until_it_begins(screen)

    def until_it_begins(self, screen: int) -> None:
        """Our end of its terminal stays open until it has opened its own, or it would hang up."""
        while not self.shown and self.process.is_alive():
            self.read()
        os.close(screen)

    def until(self, text: str) -> str:
        """What is shown up to and including `text`."""
        deadline = time.monotonic() + 300
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} never came after {self.shown!r}"
            self.read()
        before, _, self.shown = self.shown.partition(text.encode())
        return before.decode("utf-8", errors="replace").replace("\r\n", "\n") + text

    def until_it_waits(self) -> None:
        """Python's input() overlooks a signal between showing what was typed and waiting for
        more."""
        process = psutil.Process(self.process.pid)
        while process.status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)

    def read(self) -> bool:
        if not select.select([self.keys], [], [], 0.2)[0]:
            return self.process.is_alive()
        try:
            new = os.read(self.keys, 65536)
        except OSError:  # Linux's way to say that nobody is left on the other side
            return False
        self.shown += new
        return bool(new)

    def press(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def end(self) -> int:
        """The exit status, after everything was shown."""
        deadline = time.monotonic() + 300
        while self.read():
            assert time.monotonic() < deadline, f"it never ended after {self.shown!r}"
        os.close(self.keys)
        self.process.join()
        return self.process.exitcode


@pytest.fixture
def at_terminal(tmp_path):
    opened = []

    def start(*arguments, **variables):
        opened.append(Terminal(tmp_path / "terminal", *arguments, **variables))
        return opened[-1]

    yield start
    for screen in opened:
        screen.process.kill()
        screen.process.join()


@pytest.fixture
def endless(tmp_path):
    """A checkpoint whose answer to "a" goes on for as long as anybody can wait."""
    return write_small_checkpoint(tmp_path / "endless", max_position_embeddings=1_000_000)


def test_a_pipe_gives_an_answer_a_line_and_no_prompts(piped):
    code, out, err = piped(
        "\ufeff12+5=?\r\n\n  \n/reset\n12+5=?".encode(), "--model", "tiny", "--device", "cpu"
    )
    assert (code, out) == (0, ANSWER * 2)
    assert err == "qwenlab: tiny, float32 on cpu, 1 thread\n"


def test_lines_are_turns_of_one_conversation(piped, tmp_path):
    path = str(write_small_checkpoint(tmp_path / "small"))
    options = [
        "--system",
        "Be brief.",
        "--no-thinking",
        "--temperature",
        1,
        "--seed",
        3,
        "--top-k",
        40,
        "--top-p",
        0.9,
    ]
    code, out, err = piped("a\né\n".encode(), "--model", path, "--max-new-tokens", 7, *options)
    chat = qwenlab.Chat(
        *qwenlab.load(path),
        system="Be brief.",
        thinking=False,
        max_new_tokens=7,
        temperature=1.0,
        seed=3,
        top_k=40,
        top_p=0.9,
    )
    answers, reasons = "", []
    for text in ("a", "é"):
        answers += chat.send([text])[0] + "\n"
        reasons.append(chat.requests[0].finish_reason)
    assert code == 0 and out == answers
    assert err.count("qwenlab: cut off after 7 tokens\n") == reasons.count("length") == 1


def test_help_names_the_options(piped):
    code, out, _ = piped(b"", "--help")
    assert code == 0
    for option in (
        "--model",
        "--thinking",
        "--no-thinking",
        "--system",
        "--max-new-tokens",
        "--temperature",
    ):
        assert option in out


@pytest.mark.parametrize("given", [None, b"", b"\n\n"])
def test_nothing_to_say(piped, given):
    assert piped(given, "--model", "tiny", "--device", "cpu")[:2] == (0, "")


@pytest.mark.parametrize(
    "given, options, complaint",
    [
        (b"a\nb\xe9\n", [], "standard input line 2: not UTF-8 text (byte 0xe9)"),
        (b"a" * 5000, [], "conversation 0 would hold 50"),
        (b"", ["--temperature", "-1"], "temperature of the chat is -1.0, expected 0 or more"),
        (
            b"",
            ["--max-new-tokens", "0"],
            "max_new_tokens of the chat is 0, expected a whole number of at least 1",
        ),
        (b"", ["--model", "./nowhere"], "no checkpoint './nowhere'"),
        (b"", ["--slots", "2"], "No such option"),
    ],
)
def test_what_is_wrong_is_one_line(piped, given, options, complaint):
    code, _, err = piped(given, "--model", "tiny", "--device", "cpu", *options)
    assert code == 2 and "Traceback" not in err
    assert err.splitlines()[-1].startswith(f"qwenlab: {complaint}")


def test_a_checkpoint_without_a_template_cannot_talk(piped, tmp_path):
    bare = write_small_checkpoint(tmp_path / "bare", template=None)
    code, out, err = piped(b"a\n", "--model", bare)
    assert (code, out) == (2, "") and "no chat template in this checkpoint" in err.splitlines()[-1]


def test_at_a_terminal(at_terminal):
    screen = at_terminal("--model", "tiny", "--device", "cpu")
    introduction = "qwenlab: tiny, float32 on cpu, 1 thread"
    assert screen.until("> ") == f"{introduction}\nqwenlab: {terminal.HELP}\n> "
    screen.press("\n")
    assert screen.until("> ") == "\n> "
    screen.press("12+5=?\n")
    expected = "12+5=?\n" + ANSWER.replace("<think>", "\x1b[2m<think>").replace(
        "</think>", "</think>\x1b[0m"
    )
    assert screen.until("> ") == expected + "> "
    screen.press("a" * 4090 + "\n")
    assert "\nqwenlab: conversation 0 would hold " in screen.until("> ").split("a" * 9)[-1]
    screen.press("/help\n")
    assert screen.until("> ") == f"/help\nqwenlab: {terminal.HELP}\n> "
    screen.press("/reset\n")
    screen.until("> ")
    screen.press("12+5=?\n")
    assert screen.until("> ") == expected + "> "  # as the first time
    screen.press("\x04")
    assert screen.end() == 0 and screen.shown.strip() == b""


def test_ctrl_c_ends_the_answer_then_the_talk(at_terminal, endless):
    screen = at_terminal("--model", endless, "--max-new-tokens", 900_000, NO_COLOR="1")
    screen.until("> ")
    for _ in range(2):  # the second turn goes on from what was said in the first
        screen.press("a\n")
        screen.until("a\n".replace("\n", "\r\n"))
        while len(screen.shown) < 50:
            assert screen.read()
        screen.press("\x03")
        assert "\x1b[2m" not in screen.until("\n> ")
    screen.press("half a line")
    screen.until("half a line")
    screen.until_it_waits()
    screen.press("\x03")
    assert screen.end() == 0
    assert not re.search(b"Traceback|Error|interrupted", screen.shown)


def test_ctrl_c_ends_a_pipe(endless, tmp_path):
    pipe, out, err = (tmp_path / name for name in ("pipe", "out", "err"))
    os.mkfifo(pipe)
    arguments = ["chat", "--model", endless, "--max-new-tokens", "900000"]
    run = Forked(run_command, *arguments, folder=tmp_path / "run", streams=(pipe, out, err))
    with open(pipe, "w", encoding="utf-8") as stdin:
        stdin.write("a\nb\n")
        stdin.flush()
        run.wait_until(lambda: out.stat().st_size >= 20)  # shown as it comes
        run.interrupt()
        assert run.end() == 130
    said = err.read_text(encoding="utf-8")
    assert said.splitlines()[-1] == "qwenlab: interrupted" and "Traceback" not in said


def test_thinking_that_the_template_opened_is_dim_from_the_start(capsys, tmp_path):
    from small_tokenizer import TEMPLATE

    opened = TEMPLATE.replace(
        "assistant\\n' }}\n{%- if enable", "assistant\\n<think>\\n' }}\n{%- if enable"
    )
    assert opened != TEMPLATE
    chat = qwenlab.Chat(
        *qwenlab.load(write_small_checkpoint(tmp_path / "m", opened)), max_new_tokens=9
    )
    terminal.answer(chat, "a", True, [])
    (request,) = chat.requests
    assert capsys.readouterr().out == f"\x1b[2m{chat.tokenizer.decode(request.token_ids)}\x1b[0m\n"
    terminal.answer(chat, "a", True, ["pressed"])
    assert chat.requests[0].finish_reason == "cancelled"
