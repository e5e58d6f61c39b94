"""The digest of scheduled code: what a kernel does decides it, what its parts are called does not."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from schedule_harness import HARDWARE, Case, Sketch, Value, block, tirx

import autofuse
from autofuse.codegen.digest import nameless, tir_digest
from autofuse.schedule.registry import family

KERNEL = """
@T.prim_func(s_tir=True)
def {function}({x}: T.Buffer((T.int64(64),), "float32"), {out}: T.Buffer((T.int64(64),), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    {local} = T.sblock_alloc_buffer((T.int64({extent}),), scope="{scope}")
    for {i} in T.parallel(T.int64(64)):
        with T.sblock("{block}"):
            {v} = T.axis.spatial(T.int64(64), {i})
            {local}[{v}] = {x}[{v}] * T.float32({constant})
    for {j} in range(T.int64(64)):
        with T.sblock("{block}_1"):
            {w} = T.axis.spatial(T.int64(64), {j})
            T.sblock_attr({{"role": "{role}"}})
            {out}[{w}] = {local}[{w}] {operator} T.float32(1.0)
"""
NAMES = {"function": "main", "x": "x", "out": "out", "local": "t", "i": "i", "j": "j", "v": "v", "w": "w", "block": "b"}
REST = {"extent": "64", "scope": "local", "constant": "0.5", "role": "end", "operator": "+"}


def text(**changes: str) -> str:
    return KERNEL.format(**{**NAMES, **REST, **changes})


class TestNames:
    @pytest.mark.parametrize("name", sorted(NAMES))
    def test_a_name_does_not_matter(self, name: str) -> None:
        assert nameless(text(**{name: "renamed"})) == nameless(text())

    def test_a_name_used_twice_is_two_variables(self) -> None:
        """One model calls both loops i, another calls them i and j."""
        assert nameless(text(j="i", w="v")) == nameless(text())

    def test_names_that_are_also_keywords_attributes_or_strings(self) -> None:
        assert nameless(text(local="scope", i="axis", x="role", v="end")) == nameless(text())

    def test_names_of_any_script(self) -> None:
        assert nameless(text(local="größe", x="层")) == nameless(text())

    def test_comments_and_line_breaks_say_nothing(self) -> None:
        broken = (
            text().replace("T.int64(64),), ", "T.int64(64),),\n        ").replace("    for", "    # a loop\n    for")
        )
        assert broken != text() and nameless(broken) == nameless(text())

    @pytest.mark.parametrize(
        ("part", "value"),
        [("extent", "65"), ("scope", "global"), ("constant", "0.50000001"), ("role", "begin"), ("operator", "-")],
    )
    def test_everything_else_matters(self, part: str, value: str) -> None:
        assert nameless(text(**{part: value})) != nameless(text())

    def test_which_variable_is_meant_matters(self) -> None:
        swapped = text().replace("out[w] = t[w]", "out[w] = x[w]")
        assert swapped != text() and nameless(swapped) != nameless(text())

    def test_what_stands_in_a_loop_matters(self) -> None:
        body = "    {0}x[T.int64(0)] = T.float32(2.0)\n"
        assert nameless(text() + body.format("")) != nameless(text() + body.format("    "))


def by_pythons_parser(text: str) -> str:
    """What `nameless` gives, told by Python's own tokenizer and parser."""
    binds: set[tuple[int, int]] = set()
    uses: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg):
            binds.add((node.lineno, node.col_offset))
        elif isinstance(node, ast.Name):
            (uses if isinstance(node.ctx, ast.Load) else binds).add((node.lineno, node.col_offset))
    layout = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}
    number: dict[str, int] = {}
    count = 0
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER):
            continue
        line, column = token.start
        place = (line, column if token.line.isascii() else len(token.line[:column].encode()))
        word = layout.get(token.type, token.string)
        if place in binds:
            number[word] = count
            count += 1
            word = f"%{number[word]}"
        elif place in uses and word in number:
            word = f"%{number[word]}"
        elif words and token.type == tokenize.NAME and words[-1] == "def":
            word = "kernel"
        elif token.type == tokenize.STRING and words[-3:] == [".", "sblock", "("]:
            word = '""'
        words.append(word)
    return " ".join(words)


class TestReading:
    """Scripts are read as Python reads them, in a fraction of the time."""

    @pytest.mark.parametrize(
        "line",
        [
            "v: T.int32 = w + 1",
            "v, w = T.axis.remap('SS', [i, j])",
            "x[v, w] = y = x.data[v]",
            "v += w",
            "for v, w in T.grid(4, 5):\n    x[v] = T.float32(1.5e-3) if w < v else -w\nx[w] = v",
            "with T.attr(x, 'scope', 0) as v, T.launch(2):\n  x[v] = 0x1F\n  if v:\n    y = v\nv[1] = y",
            "x = f(v=w, w=v)",
            "r = T.comm_reducer(lambda v, w: v + w, [T.float32(0)])",
            "(v, w), y = x",
            "assert v == w, 'a\\'b # no comment'",
            "x = [v for v in w if v != 1]  # for i in j",
            'x = """two\n  lines""" + b\'c\'',
            "x = v\\\n    + w",
            "v = v",
            "@T.prim_func(s_tir=True)\ndef v(w: T.handle, *x, y=w) -> T.int32:\n\n    # nothing\n    pass\nv = w",
            "if (y := v) > 3: x = y",
        ],
    )
    def test_of_what_stands_in_scripts(self, line: str) -> None:
        assert nameless(line) == by_pythons_parser(line)
        assert nameless(f"v = w = 1\n{line}\n") == by_pythons_parser(f"v = w = 1\n{line}\n")

    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="the tokenizer takes formatted strings apart")
    @pytest.mark.parametrize("folder", ["schedule", "codegen", "measure", "graph"])
    def test_of_whole_modules(self, folder: str) -> None:
        modules = sorted((Path(autofuse.__file__).parent / folder).rglob("*.py"))
        assert modules
        for module in modules:
            assert nameless(module.read_text("utf-8")) == by_pythons_parser(module.read_text("utf-8")), module

    @pytest.mark.parametrize("text", ["x = (1", "x = 1)", "x = $", "if x:\n    y\n  z", "x = 'a"])
    def test_what_is_no_script_is_refused(self, text: str) -> None:
        with pytest.raises(SyntaxError):
            nameless(text)


def gate(x: Value, sketch: Sketch, kind: str, factor: float) -> Value:
    scale = tirx.const(factor, "float32")
    return sketch.elementwise(kind, lambda a: a * scale, lambda a: a * np.float32(factor), x)


def chain(first: str = "scale", second: str = "grow", factor: float = 0.1, extent: int = 48) -> Case:
    sketch = Sketch()
    x = sketch.source((4, extent))
    return sketch.finish(gate(sketch.relu(gate(x, sketch, first, factor)), sketch, second, 3.0))


def convolution(kind: str = "scale", channels: int = 16) -> Case:
    sketch = Sketch()
    plain = sketch.uniform((1, 16, 10, 10))
    out = sketch.conv2d(sketch.source((), array=block(plain)), plain, channels, (3, 3), padding=(1, 1, 1, 1))
    return sketch.finish(gate(out, sketch, kind, 0.1))


def digests(case: Case, name: str) -> list[str]:
    which = family(name)
    assert which.match(case.group, HARDWARE) is None
    configs = which.configs(case.group, HARDWARE)
    return [tir_digest(which.apply(case.func, case.group, c, HARDWARE)) for c in configs]


@pytest.mark.parametrize(("make", "name"), [(chain, "elementwise"), (convolution, "conv2d")])
def test_scheduled_kernels_are_read_as_python_reads_them(make: Callable[..., Case], name: str) -> None:
    case, which = make(), family(name)
    for config in which.configs(case.group, HARDWARE):
        script = which.apply(case.func, case.group, config, HARDWARE).script(show_meta=True)
        assert nameless(script) == by_pythons_parser(script)


@pytest.mark.parametrize(("make", "name"), [(chain, "elementwise"), (convolution, "conv2d")])
def test_equal_kernels_under_other_operator_names_have_one_digest(make: Callable[..., Case], name: str) -> None:
    renamed = digests(make("multiply"), name)
    assert renamed == digests(make(), name)
    assert len(set(renamed)) == len(renamed) > 1  # each configuration makes another kernel
    plain = [c.func.with_attr("global_symbol", "kernel").script() for c in (make("multiply"), make())]
    assert plain[0] != plain[1]  # the names do stand in the code


def test_a_changed_constant_extent_or_configuration_changes_it() -> None:
    kernels = [digests(c, "elementwise")[0] for c in (chain(), chain(factor=0.1000001), chain(extent=56))]
    assert len(set(kernels)) == 3
    assert digests(convolution(), "conv2d")[0] != digests(convolution(channels=24), "conv2d")[0]


def test_the_name_of_the_function_and_whether_it_is_private_do_not_matter() -> None:
    func = chain().func
    assert tir_digest(func) == tir_digest(func.with_attr("global_symbol", "another"))


OTHER_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from test_tir_digest import chain, digests
print(" ".join(digests(chain("other", "names"), "elementwise")))
"""


def test_it_is_the_same_in_another_process_with_other_hashes() -> None:
    code = OTHER_PROCESS.format(folder=str(Path(__file__).parent))
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == digests(chain(), "elementwise")
