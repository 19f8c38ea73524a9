"""Wrong answers to the exercises of lesson 11, as readers write them, each with a word of the hint it gets."""

import json
import math
import re

# --- last-box: (text) -> what the last box holds, "" where there is no answer ---


def after_the_last(text):
    return text.split("\\boxed{")[-1] if "\\boxed{" in text else None


def close_by_count(rest):
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[:place]
    return None


def takes_the_first(text):
    if "\\boxed{" not in text:
        return ""
    held = close_by_count(text.split("\\boxed{")[1])
    return "" if held is None else held.strip()


def cuts_at_the_first_brace(text):
    rest = after_the_last(text)
    return "" if rest is None else rest.split("}")[0].strip()


def greedy_pattern(text):
    rest = after_the_last(text)
    found = re.match(r"(.*)\}", rest or "", re.DOTALL)
    return found[1].strip() if found else ""


def falls_back_to_an_earlier_box(text):
    pieces = text.split("\\boxed{")[1:]
    for i in reversed(range(len(pieces))):
        held = close_by_count("\\boxed{".join(pieces[i:]))
        if held and held.strip():
            return held.strip()
    return ""


def keeps_what_was_said(text):
    rest = after_the_last(text)
    if rest is None:
        return ""
    held = close_by_count(rest)
    return (rest if held is None else held).strip()


def forgets_to_strip(text):
    rest = after_the_last(text)
    return (close_by_count(rest) or "") if rest is not None else ""


def answers_without_a_box(text):
    rest = after_the_last(text)
    return text if rest is None else (close_by_count(rest) or "").strip()


def with_the_box_itself(text):
    rest = after_the_last(text)
    held = close_by_count(rest) if rest is not None else None
    return f"\\boxed{{{held}}}" if held and held.strip() else ""


# --- problems-left: (content, numbers) -> kept, left ---


def split_off(content):
    *lines, _ = content.split("\n")
    return "".join(line + "\n" for line in lines), lines


def read(lines):
    return [json.loads(line)["number"] for line in lines]


def counts_lines(content, numbers):
    kept, lines = split_off(content)
    return kept, numbers[len(lines) :]


def looks_for_digits(content, numbers):
    kept, _ = split_off(content)
    return kept, [n for n in numbers if f"{n}" not in kept]


def tries_every_line(content, numbers):
    done = []
    for line in content.split("\n"):
        try:
            done += read([line])
        except json.JSONDecodeError:
            continue
    return content, [n for n in numbers if n not in done]


def reads_before_it_cuts(content, numbers):
    return split_off(content)[0], tries_every_line(content, numbers)[1]


def leaves_the_torn_line(content, numbers):
    done = read(split_off(content)[1])
    return content, [n for n in numbers if n not in done]


def gives_the_done_ones(content, numbers):
    kept, lines = split_off(content)
    return kept, [n for n in numbers if n in read(lines)]


def in_a_set(content, numbers):
    kept, lines = split_off(content)
    return kept, sorted(set(numbers) - set(read(lines)))


def drops_the_last_line_always(content, numbers):
    lines = content.removesuffix("\n").split("\n")[:-1]
    return "".join(line + "\n" for line in lines), [n for n in numbers if n not in read(lines)]


# --- accuracy-interval: (right, n) -> low, high ---

Z = 1.96


def parts(right, n, z=Z):
    p = right / n
    return p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)), 1 + z * z / n


def normal_approximation(right, n):
    p = right / n
    error = Z * math.sqrt(p * (1 - p) / n)
    return p - error, p + error


def not_divided(right, n):
    centre, half, _ = parts(right, n)
    return centre - half, centre + half


def centre_not_divided(right, n):
    centre, half, scale = parts(right, n)
    return centre - half / scale, centre + half / scale


def one_sigma(right, n):
    centre, half, scale = parts(right, n, 1.0)
    return (centre - half) / scale, (centre + half) / scale


def high_first(right, n):
    centre, half, scale = parts(right, n)
    return (centre + half) / scale, (centre - half) / scale


def in_per_cent(right, n):
    centre, half, scale = parts(right, n)
    return 100 * (centre - half) / scale, 100 * (centre + half) / scale


WRONG = {
    "last-box": {
        takes_the_first: "this is the first box",
        cuts_at_the_first_brace: "stop at the first closing brace",
        greedy_pattern: "last closing brace of the text",
        falls_back_to_an_earlier_box: "does not stand in",
        keeps_what_was_said: "whatever it has said so far",
        forgets_to_strip: "spaces around",
        answers_without_a_box: "return the empty string",
        with_the_box_itself: "between the braces",
    },
    "problems-left": {
        counts_lines: "not by counting",
        looks_for_digits: "12 holds a 2",
        tries_every_line: "only with its line break",
        reads_before_it_cuts: "must be asked again",
        leaves_the_torn_line: "still in the file",
        gives_the_done_ones: "are done",
        in_a_set: "keep the order",
        drops_the_last_line_always: "is whole, and may stay",
    },
    "accuracy-interval": {
        normal_approximation: "no width at all",
        not_divided: "last step is missing",
        centre_not_divided: "centre is divided",
        one_sigma: "68 %",
        high_first: "low comes first",
        in_per_cent: "not in per cent",
    },
}
