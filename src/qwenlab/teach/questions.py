"""`quiz`: one question whose choices unfold and say at once whether they are right, and why.

It is plain HTML without a script, so that it works in the built page, live and in a saved notebook:
each choice is a <details> element, which mouse, touch and keyboard open alike. `answer_table` shows
the answers of all lessons to a teacher.
"""

import ast
import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from string import ascii_uppercase

from qwenlab.teach.pictures import Html

RIGHT = "✓ Right."
WRONG = "✗ Not this one."


class Question(Html):
    """What `quiz` returns: it shows itself, and prints as text.

    choices: (choice, reason) pairs in the order shown; right: the index of the right one.
    """

    def __init__(self, question: str, choices: list[tuple[str, str]], right: int) -> None:
        self.question = question
        self.choices = choices
        self.right = right
        super().__init__(self._body(), self._plain())

    def verdict(self, number: int) -> str:
        """What a choice says when it is opened, before its reason."""
        return RIGHT if number == self.right else WRONG

    def _body(self) -> str:
        # Of the elements that share a name, the browser keeps one open at a time.
        name = f"qwl-quiz-{_digest(self.question) % 10**12}"
        parts = []
        for number, (choice, reason) in enumerate(self.choices):
            mark = "qwl-good" if number == self.right else "qwl-bad"
            parts.append(
                f'<details name="{name}"><summary><b>{ascii_uppercase[number]}.</b> '
                f'{_marked_up(choice)}</summary><p class="{mark}"><b>{self.verdict(number)}</b> '
                f"{_marked_up(reason)}</p></details>"
            )
        # JupyterLab has shortcuts for Enter and Space, which open a choice here.
        return (
            '<fieldset class="qwl qwl-quiz" data-lm-suppress-shortcuts="true">'
            f'<legend>{_marked_up(self.question)}<span class="qwl-words"> Open a choice to hear '
            f"whether it is right.</span></legend>{''.join(parts)}</fieldset>"
        )

    def _plain(self) -> str:
        lines = [self.question]
        for number, (choice, _) in enumerate(self.choices):
            lines.append(f"  {ascii_uppercase[number]}. {choice}")
        lines.append("")
        for number, (_, reason) in enumerate(self.choices):
            lines.append(f"{ascii_uppercase[number]}: {self.verdict(number)} {reason}")
        return "\n".join(lines)


def quiz(question: str, right: tuple[str, str], wrong: Sequence[tuple[str, str]]) -> Question:
    """A question with one right choice and one or more wrong ones, each with its reason.

    right: (choice, reason); wrong: a list of such pairs. Words between backticks are shown as code.
    The place of the right choice follows from the question's text and from nothing else, so it is
    the same in every run; over many questions all places are equally frequent. Printed on paper,
    the choices have no reasons: it is a sheet to fill in.

    Raises ValueError for an empty text, a choice given twice, no or too many wrong choices, a
    backtick without its partner, and for anything that is not a pair of texts.
    """
    question = _text(question, "the question")
    if not isinstance(wrong, (list, tuple)):
        raise ValueError(f"quiz: wrong must be a list of (choice, reason) pairs, got {wrong!r}")
    if not 1 <= len(wrong) < len(ascii_uppercase):
        raise ValueError(f"quiz: expected 1 to 25 wrong choices, got {len(wrong)}")
    choices = []
    for number, pair in enumerate(wrong, start=1):
        choices.append(_pair(pair, f"wrong choice {number}"))
    place = _digest(question) % (len(wrong) + 1)
    choices.insert(place, _pair(right, "the right choice"))
    seen = set()
    for choice, _ in choices:
        if choice in seen:
            raise ValueError(f"quiz: the choice {choice!r} is given twice")
        seen.add(choice)
    return Question(question, choices, place)


def _pair(pair: tuple[str, str], name: str) -> tuple[str, str]:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ValueError(f"quiz: {name} must be a pair (choice, reason), got {pair!r}")
    return _text(pair[0], name), _text(pair[1], f"the reason of {name}")


def _text(text: str, name: str) -> str:
    """The text on one line."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"quiz: {name} must be a text that is not empty, got {text!r}")
    if text.count("`") % 2:
        raise ValueError(f"quiz: a backtick has no partner in {name}: {text!r}")
    return " ".join(text.split())


def _digest(question: str) -> int:
    return int(sha256(question.encode()).hexdigest(), 16)


def _marked_up(text: str) -> str:
    """HTML of a text in which backticks mark code."""
    html = ""
    for number, piece in enumerate(text.split("`")):
        html += f"<code>{escape(piece)}</code>" if number % 2 else escape(piece)
    return html


def questions_of(notebook: Path) -> Iterator[Question]:
    """The questions of a lesson, read from the calls of `quiz` in its cells. Nothing is run.

    Raises ValueError, which names the file and the cell, where a question can't be read.
    """
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "quiz(" not in source:
            continue
        try:
            for call in _calls_of_quiz(source):
                arguments = list(map(ast.literal_eval, call.args))
                named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
                yield quiz(*arguments, **named)
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"{notebook.name}, cell {cell.get('id')}: {error}") from error


def _calls_of_quiz(source: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "quiz":
            yield node


def answer_table(folder: Path) -> Html:
    """The right answers to all questions of a folder of lessons, folded, for teachers."""
    rows = ""
    lines = []
    for notebook in sorted(folder.glob("*.ipynb")):
        for number, question in enumerate(questions_of(notebook), start=1):
            lesson = notebook.stem.partition("-")[0]
            letter = ascii_uppercase[question.right]
            choice, reason = question.choices[question.right]
            rows += (
                f'<tr><th scope="row">{escape(lesson)}.{number}</th>'
                f"<td>{_marked_up(question.question)}</td>"
                f"<td><b>{letter}. {_marked_up(choice)}</b> {_marked_up(reason)}</td></tr>"
            )
            lines.append(f"{lesson}.{number}  {question.question}  {letter}. {choice}  {reason}")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "question", "right answer"))
    return Html(
        '<details class="qwl qwl-answer-key"><summary>The right answers to all quizzes</summary>'
        '<div class="qwl-box" tabindex="0" role="group" aria-label="The right answers">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>",
        "\n".join(lines),
    )
