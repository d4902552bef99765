"""Checks the prose of README.md and docs/: how long its sentences are, and words that readers stumbled over.

    python tools/prose.py           fails where a page has more of either than it may; `make lint` runs it
    python tools/prose.py --list    shows all of them
    python tools/prose.py --lower   lowers what pages may have to what they have

A sentence may have 25 words. tools/prose.txt says how many longer ones a page may have, and how many of the words
below: what was there when the check began, or less. The line ``*`` is for pages that have no line of their own.
Words are looked for in tables and headings, too, which have no sentences. Code and HTML are not prose; of a link its
text is; a piece of code in a sentence is one word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
BARS = ROOT / "tools" / "prose.txt"
LONGEST = 25

# Words of a house English that readers did not understand, or would not search for, and what to write instead.
AVOID = {
    r"said|told": "is reported, shown, set by an option; or name who says it",
    r"nobody|somebody|whoever": "name who: the driver, a worker, another program, a user",
    r"anew": "again",
    r"shall": "must, or will",
    r"amid(?:st)?": "in the middle of",
    r"for ever": "never ends",
    r"thus|hence|thereby|wherein|whereby|thereof": "begin a new sentence",
    r"(?:the )?how manieth": "its index",
    r"without a word": "without a message, without an error",
    r"makes? no sense": "is invalid",
    r"as ever": "as usual, or leave it out",
    r"upon": "on",
}
_AVOID = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in AVOID.items()}

# A sentence ends at a mark that a space and no small letter follow: "e.g. x" and "etc. (" do not end one.
_END = re.compile(r"(?<=[.!?])[\"'”)]*\s+(?![a-z–]|\([a-z])")


class Sentence(NamedTuple):
    """A sentence, and the line of its page on which it begins."""

    line: int
    text: str


_PARAGRAPHS = ("paragraph_open",)
_EVERYWHERE = (*_PARAGRAPHS, "heading_open", "th_open", "td_open")


def sentences(markdown: str, within: Container[str] = _PARAGRAPHS) -> Iterator[Sentence]:
    """Yield the sentences of a page: of its paragraphs, or of headings and tables, too."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    for before, token in pairwise(tokens):
        if before.type not in within or token.map is None:
            continue
        text = "".join(_plain(part) for part in token.children or [])
        start = 0
        for end in [*(found.end() for found in _END.finditer(text)), len(text)]:
            if one := " ".join(text[start:end].split()):
                yield Sentence(token.map[0] + 1 + text.count("\n", 0, start), one)
            start = end


def _plain(part: Token) -> str:
    """Return the text of a part of a paragraph, with its line ends; of a piece of code, one word."""
    if part.type == "code_inline":
        return f"`{part.content.replace(' ', '␣')}`"
    return "\n" if part.type in ("softbreak", "hardbreak") else part.content if part.type == "text" else ""


def too_long(markdown: str) -> list[tuple[Sentence, str]]:
    """Return the sentences of more than 25 words, and how many they have."""
    counted = [
        (one, sum(bool(re.search(r"\w", word)) for word in one.text.split())) for one in sentences(markdown)
    ]
    return [(one, f"{words} words") for one, words in counted if words > LONGEST]


def odd_words(markdown: str) -> list[tuple[Sentence, str]]:
    """Return what has a word to avoid, and what to write instead; a sentence with two words twice."""
    return [
        (one, f'"{found[0]}" (instead: {instead})')
        for one in sentences(markdown, _EVERYWHERE)
        for pattern, instead in _AVOID.items()
        for found in pattern.finditer(one.text)
    ]


def main(arguments: list[str]) -> int:
    """Print what is wrong, and return 1 if a page has more of it than it may."""
    bars = {name: [int(long), int(odd)] for long, odd, name in map(str.split, BARS.read_text().splitlines())}
    lower = {"*": bars["*"]}
    every, totals, failed = 0, [0, 0], False
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name, text = page.relative_to(ROOT).as_posix(), page.read_text()
        every += sum(1 for _ in sentences(text))
        found = [too_long(text), odd_words(text)]
        for i, bar in enumerate(bars.get(name, bars["*"])):
            totals[i] += len(found[i])
            over = len(found[i]) > bar
            for sentence, why in found[i] if over or "--list" in arguments else []:
                print(f"{name}:{sentence.line}: {why}: {sentence.text}")
            if over:
                print(f"{name}: {len(found[i])} of these; tools/prose.txt allows {bar}.\n")
                failed = True
        if name in bars:
            lower[name] = [min(bar, len(some)) for bar, some in zip(bars[name], found, strict=True)]
    share = f"{totals[0]} of more than {LONGEST} words ({totals[0] / every:.1%})"
    print(f"{every} sentences, {share}, {totals[1]} odd words")
    if "--lower" in arguments:
        BARS.write_text("".join(f"{long} {odd} {name}\n" for name, (long, odd) in sorted(lower.items())))
    elif lower != bars:
        print("Pages have fewer of these than they may. To write that down: python tools/prose.py --lower")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
