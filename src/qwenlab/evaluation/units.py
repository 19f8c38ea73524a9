"""Units of measurement: where an amount ends and its unit begins, and which units are the same."""

import re

from qwenlab.evaluation.latex import STYLE
from qwenlab.evaluation.notation import UNIT_LETTERS

# One unit per line, its canonical name first; plurals in -s are added below.
UNITS = """
meter metre
kilometer kilometre km kms
centimeter centimetre cm cms
millimeter millimetre mm
mile mi
yard yd
foot feet ft
inch inches in
gram gm gms
kilogram kg kgs kilo
milligram mg
pound lb lbs
ounce oz
ton tonne
liter litre
milliliter millilitre ml mL
gallon gal
quart qt
second sec secs
minute min mins
hour hr hrs
day
week
month
year yr yrs
am a.m. AM
pm p.m. PM
dollar USD usd buck
cent
euro EUR
pounds sterling
percent %
degree \\degree
radian rad rads
celsius
fahrenheit
kelvin
mph
kph
newton
joule
watt
kilowatt kW
volt
hertz Hz
unit
"""
COMPOUND = {"mph": "mile / hour", "kph": "kilometer / hour"}
KNOWN: dict[str, str] = {}  # {alias: canonical name}
for line in UNITS.strip().splitlines():
    for alias in line.split():
        KNOWN[alias] = line.split()[0]
for name in list(KNOWN):
    if len(name) > 2 and name[-1] != "s":
        KNOWN[name + "s"] = KNOWN[name]
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
POWERED = {"squared": 2, "cubed": 3}

# Words in \text{} that are no unit, because they change the value before them or what is claimed.
CHANGING = (
    "and|or|not|no|isn't|is|are|wrong|but|to|than|more|less|fewer|greater|plus|minus|times|mod"
    "|modulo|half|halves|third|fourth|fifth|quarter|tenth|factorial|dozen|hundred|hundredth"
    "|thousand|thousandth|[mbtr]+illion|lakh|crore|grand|approx|approximately|nearly|almost"
    "|roughly|score|gross|one|two|three|four|five|six|seven|eight|nine|ten|twice|double|triple"
    "|fold|if|when|unless|except|without|false|incorrect|at|least|most|about|around|remainder"
    "|below|above|under|over|through|base|negative|choose|pi|root"
    "|or so|versus|vs|maybe|only|too|otherwise|never|none|for|with"
)
WORD = "|".join(sorted({*KNOWN, *POWERS} - {"%", "\\degree"}, key=len, reverse=True)).replace(
    ".", r"\."
)
PART = rf"{STYLE}\s*\{{[^{{}}]*\}}|\\degree(?![a-zA-Z])|(?<![a-zA-Z\\{{])(?:{WORD})(?![a-zA-Z])"
MORE = rf"\s|{PART}|squared|cubed|(?:per|an?)(?= )|/|\\cdot(?![a-zA-Z])|\^\s*\{{ ?-?[0-9] ?\}}"
TAIL = re.compile(rf"((?:{PART})(?:{MORE})*)$")
BASE = re.compile(r"([A-F]*[0-9][0-9A-F]*) ?(_ ?(?:[0-9]|\{ ?[0-9]+ ?\}))$")
TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")


def measured(text: str) -> tuple[str, str]:
    """Amount, and unit or base ("" if there is none)."""
    if base := BASE.fullmatch(text):
        return base[1], re.sub(r"[ {}]", "", base[2])
    tail = TAIL.search(text)
    if tail is None:
        return text, ""
    amount = text[: tail.start()].strip()
    angle = tail[1].startswith("\\degree") and TRIGONOMETRIC.search(amount)
    if angle or not amount or amount[-1] in "^_/+-*=\\":
        return text, ""
    unit = canonical(tail[1])
    return (text, "") if unit is None else (amount, unit)


def canonical(tail: str) -> str | None:
    """The unit's canonical name, the same for every spelling: "mile/hour", "inch^2". None if it is
    no unit."""
    words = re.sub(STYLE + r"\s*\{([^{}]*)\}", r" \1 ", tail)
    if re.search(rf"\b(?:{CHANGING})s?\b", words, re.IGNORECASE):
        return None
    words = re.sub(r"\bper\s*cent\b", "percent", words)
    words = words.replace("-", " ").replace("\\cdot", " ")
    for short, full in COMPOUND.items():
        words = re.sub(rf"\b{short}\b", full, words)
    if re.search(r"[^a-zA-Z /^{}().,%0-9'\\-]", words):
        return None
    parts: list[str] = []
    power = 0
    for word in re.findall(r"a\.m\.|p\.m\.|\\?[a-zA-Z%']+|/|\^\s*\{\s*-?[0-9]\s*\}|[0-9]+", words):
        if word in POWERS:
            power = POWERS[word]
        elif word in POWERED:
            if not parts:
                return None
            parts[-1] += f"^{POWERED[word]}"
        elif word.startswith("^") and parts:
            parts[-1] += re.sub(r"[\s{}]", "", word)
        elif word in ("per", "/", "a", "an"):
            parts.append("/")
        elif word[0].isdigit() or word[0] == "^":
            return None
        else:
            parts.append(singular(word) + (f"^{power}" if power else ""))
            power = 0
    unit = " ".join(parts).replace(" / ", "/")
    return re.sub("^degree (?=celsius|fahrenheit)", "", unit) or None


def singular(word: str) -> str:
    """A unit's canonical name: "cm", "Centimetres" and "centimeter" have the same one. An unknown
    word loses its plural s."""
    if word in UNIT_LETTERS:
        return UNIT_LETTERS[word]
    if len(word) < 4 or word in KNOWN:
        return KNOWN.get(word, word)
    word = word.casefold()
    return KNOWN.get(word, re.sub(r"(?<=[a-z])e?s$", "", word))
