"""The entries of a tokenizer.json: which character stands for which byte, which tokens are control
tokens, which ids are invalid."""

from qwenlab.errors import QwenlabError


class TokenizerError(QwenlabError):
    """tokenizer.json is missing or of another kind, or text or ids can't be converted."""


def byte_of_character() -> dict[str, int]:
    """The table of byte-level BPE: a printable character for each of the 256 bytes.

    Printable bytes stand for themselves; the others take the characters from 256 upwards, in order
    (GPT-2's `bytes_to_unicode`; Radford et al. 2019, section 2.2).
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    byte_of = {chr(byte): byte for byte in printable}
    free = 256
    for byte in range(256):
        if byte not in printable:
            byte_of[chr(free)] = byte
            free += 1
    return byte_of


BYTE_OF = byte_of_character()


def is_control(token: dict) -> bool:
    """Whether an added token is a control token (`<|im_end|>`, `<think>`) rather than a word added
    as text."""
    text = token["content"]
    return token["special"] or (text.startswith("<") and text.endswith(">"))


def refuse_ids(tokens: list[tuple[str, int]], source: str) -> None:
    """Raises TokenizerError, naming the token, unless each token has one id of its own, a whole
    number."""
    text_of: dict[int, str] = {}
    id_of: dict[str, int] = {}
    for text, id in tokens:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < 2**31:
            reason = f"token {text!r} has id {id!r}, expected a whole number of at least 0"
            raise TokenizerError(f"{source}: not a tokenizer.json as expected ({reason})")
        if text_of.setdefault(id, text) != text:
            raise TokenizerError(f"{source}: tokens {text_of[id]!r} and {text!r} share the id {id}")
        if id_of.setdefault(text, id) != id:
            raise TokenizerError(f"{source}: token {text!r} has the ids {id_of[text]} and {id}")
