"""The digest of scheduled code: takes a PrimFunc, gives 16 hex digits that say what it does and not how it is named.

Two models name the same kernel differently: functions, buffers, loop variables and blocks are called after operators.
So the digest is that of the function's TVMScript in which every variable has the number of its binding, in order of
appearance, and blocks have no name. All else counts: constants, extents, types, annotations, memory scopes, the order
of statements. The text is the same on every platform, in every process and under every Python.

A structural hash would also see what no text shows, such as whether a buffer's default layout was written down.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from typing import Any

Place = tuple[int, int]
DIGEST_LENGTH = 16
_NAME = "kernel"
# Line breaks within brackets and comments say nothing.
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_LAYOUT = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}


def tir_digest(func: Any) -> str:
    """The digest of a PrimFunc, scheduled or not."""
    text = func.with_attr("global_symbol", _NAME).script(show_meta=True)
    return hashlib.sha256(nameless(text).encode()).hexdigest()[:DIGEST_LENGTH]


def nameless(text: str) -> str:
    """TVMScript as tokens parted by spaces, every variable as `%n`. SyntaxError if the text is no TVMScript.

    A name that is bound again is another variable from there on: TVMScript never hides one that is still in use.
    """
    binds, uses = _names(ast.parse(text))
    number: dict[str, int] = {}
    count = 0
    words: list[str] = []
    for kind, word, place in _tokens(text):
        if place in binds:
            number[word] = count
            count += 1
            word = f"%{number[word]}"
        elif place in uses and word in number:
            word = f"%{number[word]}"
        elif words and kind == tokenize.NAME and words[-1] == "def":
            word = _NAME
        elif kind == tokenize.STRING and words[-3:] == [".", "sblock", "("]:
            word = '""'
        words.append(word)
    return " ".join(words)


def _names(tree: ast.AST) -> tuple[set[Place], set[Place]]:
    """Where names are bound and where they are read: (line, byte in it). Attributes and keywords are neither."""
    binds: set[Place] = set()
    uses: set[Place] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            binds.add((node.lineno, node.col_offset))
        elif isinstance(node, ast.Name):
            (uses if isinstance(node.ctx, ast.Load) else binds).add((node.lineno, node.col_offset))
    return binds, uses


def _tokens(text: str) -> Iterator[tuple[int, str, Place]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            line, column = token.start
            place = (line, len(token.line[:column].encode()) if not token.line.isascii() else column)
            yield token.type, _LAYOUT.get(token.type, token.string), place
