"""The digest of scheduled code: takes a PrimFunc, gives 16 hex digits that say what it does and not how it is named.

Two models name the same kernel differently: functions, buffers, loop variables and blocks are called after operators.
So the digest is that of the function's TVMScript in which every variable has the number of its binding, in order of
appearance, and blocks have no name. All else counts: constants, extents, types, annotations, memory scopes, the order
of statements. The text is the same on every platform, in every process and under every Python.

A structural hash would also see what no text shows, such as whether a buffer's default layout was written down.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from keyword import iskeyword
from typing import Any

DIGEST_LENGTH = 16
_NAME = "kernel"

# Python's tokens, a line break with the spaces behind it. The standard library's own reader takes several times as
# long, and kernels are long; that it and Python's parser see the same is what tests/test_tir_digest.py compares.
_TOKEN = re.compile(
    r"""[,()\[\]{}]
    |[^\W\d]\w*(?![\w"'])
    |\n[ \t\f]*
    |0[xX][\da-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*(?:\.(?:\d[\d_]*)?)?|\.\d[\d_]*)(?:[eE][-+]?\d[\d_]*)?[jJ]?
    |\.\.\.|->|(?:\*\*|//|<<|>>|[-+*/%&|^@:<>=!])=|\*\*|//|<<|>>|[-+*/%&|^@:<>=~;.]
    |\w*(?:"{3}(?:[^\\]|\\.)*?"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |\#[^\n]*|\\\n
    |[^ \t\f]""",
    re.VERBOSE | re.DOTALL,
)
_LAYOUT, _LINE, _SILENT, _STRING, _NUMBER, _WORD, _SIGN = range(7)
_INDENT, _DEDENT, _END = ">", "<", ";"  # of kind _LAYOUT alone: these are signs, too
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_ASSIGN = frozenset(f"{sign}=" for sign in ("", "+", "-", "*", "/", "//", "%", "&", "|", "^", "@", ">>", "<<", "**"))
# Statements whose names are no variables of theirs.
_NO_VARIABLES = frozenset({"import", "from", "nonlocal", "global"})

Token = tuple[int, str]


def tir_digest(func: Any) -> str:
    """The digest of a PrimFunc, scheduled or not."""
    text = func.with_attr("global_symbol", _NAME).script(show_meta=True)
    return hashlib.sha256(nameless(text).encode()).hexdigest()[:DIGEST_LENGTH]


def nameless(text: str) -> str:
    """TVMScript as tokens parted by spaces, every variable as `%n`. SyntaxError if the text cannot be read.

    A name that is bound again is another variable from there on: TVMScript never hides one that is still in use.
    """
    tokens = _tokens(text)
    binds, uses = _names(tokens)
    number: dict[str, int] = {}
    count = 0
    words: list[str] = []
    for place, (kind, word) in enumerate(tokens):
        if word == _DEDENT and kind == _LAYOUT:
            # Counted as if it were the name that follows it: so digests have been from the first on.
            place = next((i for i in range(place, len(tokens)) if tokens[i][0] != _LAYOUT), place)
        if place in binds:
            number[word] = count
            count += 1
            word = f"%{number[word]}"
        elif place in uses and word in number:
            word = f"%{number[word]}"
        elif kind == _WORD and words and words[-1] == "def":
            word = _NAME
        elif kind == _STRING and words[-3:] == [".", "sblock", "("]:
            word = '""'
        words.append(word)
    return " ".join(words)


def _names(tokens: Sequence[Token]) -> tuple[set[int], set[int]]:
    """Which tokens are names that are bound there, and which are names that are read.

    Attributes, keywords of calls, names of modules and of exceptions, and Python's own words are neither.
    """
    binds: set[int] = set()
    uses: set[int] = set()
    depth, before, opening, first, several = 0, "", "", 0, 0
    fresh, header, annotated = True, False, False  # a statement begins; brackets of a `def`; behind a colon
    # Depths of the `for`s whose targets have not ended yet (with `in`), and of the lambdas that are without their `:`.
    targets: list[int] = []
    parameters: list[int] = []
    for place, (kind, word) in enumerate(tokens):
        if kind == _LAYOUT:
            fresh, before = True, ""
            continue
        if fresh:
            fresh, header, annotated = False, word == "def", False
            opening, first, several = word, place, _several(tokens, place)
        if kind == _SIGN:
            if word in _OPEN:
                depth += 1
            elif word in _CLOSE:
                depth -= 1
                header = header and depth > 0
            elif word == ":" and parameters and parameters[-1] == depth:
                parameters.pop()
            elif word == ":" and not depth:
                annotated = not iskeyword(opening)
        elif kind == _WORD and iskeyword(word):
            if word == "for":
                targets.append(depth)
            elif word == "in" and targets and targets[-1] == depth:
                targets.pop()
            elif word == "lambda":
                parameters.append(depth)
        elif kind == _WORD and before not in (".", "def") and opening not in _NO_VARIABLES:
            after = tokens[place + 1][1]
            if (
                targets
                or (parameters and parameters[-1] == depth and before != "=")
                or (header and depth == 1 and (before in ("(", ",") or tokens[place - 2][1] in ("(", ",")))
                or (before == "as" and opening == "with")
                or (not depth and not annotated and (after in _ASSIGN or (after == ":" and place == first)))
                or (place < several and after in (",", ")", "]"))
                or after == ":="
            ):
                binds.add(place)
            elif not (depth and after == "=") and before != "as":
                uses.add(place)
        before = word
    return binds, uses


def _several(tokens: Sequence[Token], first: int) -> int:
    """The end of several targets that a statement assigns to, which begins at `first`; `first` if it does not."""
    if tokens[first][1] not in ("(", "[", "*") and tokens[first + 1][1] != ",":
        return first
    depth = 0
    for place in range(first, len(tokens)):
        kind, word = tokens[place]
        if kind == _LAYOUT or (word == ":" and not depth):
            return first
        if word == "=" and not depth:
            return place
        depth += (kind == _SIGN) * ((word in _OPEN) - (word in _CLOSE))
    return first


def _tokens(text: str) -> list[Token]:
    """The tokens of Python's grammar; comments, and line breaks within brackets, say nothing."""
    tokens: list[Token] = []
    kinds: dict[str, int] = {}
    columns = [0]
    depth, fresh, column = 0, True, 0
    for word in _TOKEN.findall(f"\n{text}"):
        kind = kinds.get(word)
        if kind is None:
            kind = kinds[word] = _kind(word)
        if kind == _LINE:
            if not depth:
                if not fresh:
                    tokens.append((_LAYOUT, _END))
                fresh, column = True, len(word) - 1
            continue
        if kind == _SILENT:
            continue
        if fresh:
            fresh = False
            if column > columns[-1]:
                columns.append(column)
                tokens.append((_LAYOUT, _INDENT))
            while column < columns[-1]:
                columns.pop()
                tokens.append((_LAYOUT, _DEDENT))
            if column != columns[-1]:
                raise SyntaxError(f"a line of the script is indented like none before: {word}")
        if kind == _SIGN:
            depth += (word in _OPEN) - (word in _CLOSE)
        tokens.append((kind, word))
    if depth:
        raise SyntaxError("the script's brackets do not match")
    if not fresh:
        tokens.append((_LAYOUT, _END))
    tokens.extend((_LAYOUT, _DEDENT) for _ in columns[1:])
    return tokens


def _kind(word: str) -> int:
    """What a match of _TOKEN is. SyntaxError for what no script has."""
    if word[0] == "\n":
        return _LINE
    if word[0] == "#" or word == "\\\n":
        return _SILENT
    if word[-1] in "\"'" and len(word) > 1:
        return _STRING
    if word[0].isdecimal() or (word[0] == "." and word[1:2].isdecimal()):
        return _NUMBER
    if word.isidentifier():
        return _WORD
    if word[0] in "-+*/%&|^@:<>=~()[]{},;.!" and word != "!":
        return _SIGN
    raise SyntaxError(f"{word!r} stands in no script")
