"""A checkpoint's tokenizer and chat template as text.js in `page/` takes them.

A browser's regular expressions have Unicode tables of their own, so what a pattern's classes mean
to the tokenizers library is packed with it. Tokenizers that text.js doesn't compute are refused.
"""

from functools import lru_cache
from itertools import groupby
from pathlib import Path

from tokenizers import Regex, normalizers

from qwenlab.errors import QwenlabError, read_json
from qwenlab.loading import TOKENIZER, shipped_folder
from qwenlab.text.tokenizer import Tokenizer
from qwenlab.text.vocabulary import BYTE_OF

CLASSES = (r"\s", r"\p{L}", r"\p{N}")


class PageModelError(QwenlabError):
    """The checkpoint is too large for a page, or of a kind that the page doesn't compute."""


def pack_tokenizer(tokenizer: Tokenizer, folder: Path) -> dict:
    """What the Tokenizer of text.js is made from. Raises PageModelError for other kinds."""
    spec = read_json(folder / TOKENIZER, PageModelError)
    pattern, normal_form = text_rules(spec, folder)
    words = [t["content"] for t in spec["added_tokens"] if t["content"] not in tokenizer.control]
    known = set(tokenizer.text_of.values())
    if words or spec["model"].get("ignore_merges") or not BYTE_OF.keys() <= known:
        raise PageModelError(
            f"{folder / TOKENIZER}: added words, ignore_merges or a vocabulary without all bytes, "
            "which the page doesn't compute"
        )
    merges = []
    for pair in spec["model"]["merges"]:
        merges.append(pair if isinstance(pair, str) else " ".join(pair))
    classes = {}
    for name in CLASSES:
        if used(name, pattern):
            classes[name] = character_class(name)
    return {
        "tokens": [tokenizer.text_of.get(id) for id in range(max(tokenizer.text_of) + 1)],
        "merges": merges,
        "control": tokenizer.control,
        "special": sorted(tokenizer.special),
        "pad_id": tokenizer.pad_id,
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "normal_form": normal_form,
        "split": pattern,
        "classes": classes,
        "chat": has_known_template(folder),
    }


def text_rules(spec: dict, folder: Path) -> tuple[str, str | None]:
    """The pattern that splits text, and the Unicode normal form (None: as it is)."""
    steps = spec.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    normalizer = spec.get("normalizer")
    kinds = [step.get("type") for step in steps]
    known = kinds == ["Split", "ByteLevel"] and normalizer in (None, {"type": "NFC"})
    if known:
        split, to_bytes = steps
        pattern = split["pattern"].get("Regex", "")
        known = split["behavior"] == "Isolated" and not split["invert"] and bool(pattern)
        known = known and not to_bytes["add_prefix_space"] and not to_bytes["use_regex"]
        known = known and not unknown_escapes(pattern)
    if not known:
        raise PageModelError(
            f"{folder / TOKENIZER}: not split and normalised as the page does it, expected NFC or "
            "none, then Split by a pattern of \\s, \\p{L}, \\p{N}, then ByteLevel"
        )
    return pattern, normalizer and normalizer["type"]


def unknown_escapes(pattern: str) -> bool:
    """Whether a pattern has escapes that may mean something else in JavaScript."""
    for name in (*CLASSES, *map(negated, CLASSES), r"\n", r"\r", r"\t"):
        pattern = pattern.replace(name, "")
    return "\\" in pattern


def negated(name: str) -> str:
    return name[0] + name[1].upper() + name[2:]


def used(name: str, pattern: str) -> bool:
    return name in pattern or negated(name) in pattern


@lru_cache
def character_class(name: str) -> str:
    r"""The characters that `name` (`\s`, for example) means to the tokenizers library, as ranges of
    a JavaScript class: asked of the library, because every regex engine has tables of its own."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]  # no halves of surrogate pairs
    without = normalizers.Replace(Regex(f"{name}+"), "").normalize_str
    inside: list[int] = []
    for start in range(0, len(points), 4096):  # the library is slow on long texts
        chunk = points[start : start + 4096]
        outside = without("".join(map(chr, chunk)))
        if len(outside) < len(chunk):
            inside += sorted(set(chunk).difference(map(ord, outside)))
    ranges = []
    for _, run in groupby(enumerate(inside), lambda pair: pair[1] - pair[0]):
        members = [point for _, point in run]
        ranges.append(f"\\u{{{members[0]:x}}}-\\u{{{members[-1]:x}}}")
    return "".join(ranges)


def has_known_template(folder: Path) -> bool:
    """Whether there is a chat template. Raises PageModelError for one that text.js doesn't write:
    it has that of the shipped models."""
    template = template_text(folder)
    if template is None:
        return False
    if template != template_text(shipped_folder() / "tiny"):
        raise PageModelError(
            f"{folder}: its chat template is not that of the shipped models, "
            "the one that the page writes"
        )
    return True


def template_text(folder: Path) -> str | None:
    alone = folder / "chat_template.jinja"
    if alone.exists():
        return alone.read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    return read_json(settings, PageModelError).get("chat_template") if settings.exists() else None
