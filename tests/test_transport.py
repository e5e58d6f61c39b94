"""Scheduled code on its way to another process: what arrives is the code that was sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from golden_groups import GROUPS
from schedule_harness import HARDWARE
from test_tir_digest import chain
from tvm.script import tirx as T

from autofuse.codegen.digest import tir_digest
from autofuse.codegen.transport import from_text, to_text
from autofuse.schedule.registry import family

# mypy: disable-error-code="valid-type,untyped-decorator,no-untyped-def"


@pytest.mark.parametrize("name", GROUPS)
def test_the_code_of_every_family_arrives_as_it_was(name: str) -> None:
    which = family(name)
    for make in GROUPS[name].values():
        group, plain = make()
        for config in list(which.configs(group, HARDWARE))[:2]:
            func = which.apply(plain, group, config, HARDWARE)
            again = from_text(to_text(func))
            assert tvm_ffi.structural_equal(func, again), config.text
            assert again.script(show_meta=True) == func.script(show_meta=True)
        again = from_text(to_text(plain))
        assert tvm_ffi.structural_equal(plain, again) and tir_digest(again) == tir_digest(plain)


@T.prim_func
def _odd(x: T.Buffer((8,), "float32"), out: T.Buffer((8,), "float32")):
    T.func_attr({"tirx.noalias": True, "note": 'quotes " and \\ and ß'})
    for i in T.serial(8, annotations={"steps": [1, 2], "share": T.float32(0.1)}):
        if i < 7:
            out[i] = T.max(x[i], T.float32(-3.4028234663852886e38)) + T.float32("inf")
        else:
            out[i] = T.Select(x[i] == x[i], T.exp(x[i]), T.float32(1e-45)) * T.float32("nan")


def test_numbers_and_texts_arrive_exactly() -> None:
    text = to_text(_odd)
    assert "\n" not in text and text.isascii()
    again = from_text(text)
    assert again.script(show_meta=True) == _odd.script(show_meta=True)
    assert to_text(again) == text


def test_variables_of_one_name_stay_apart() -> None:
    @T.prim_func
    def twice(x: T.Buffer((4, 4), "int32")):
        for i in range(4):
            for j in range(4):
                x[i, j] = i - j

    outer: Any = from_text(to_text(twice)).body
    inner = outer.body
    assert not outer.loop_var.same_as(inner.loop_var)
    assert inner.body.indices[0].same_as(outer.loop_var) and inner.body.indices[1].same_as(inner.loop_var)


def test_a_text_is_short_where_a_value_is_used_often() -> None:
    """Indices are the same a thousand times over: they are written once."""

    @T.prim_func
    def once(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")):
        for i in range(64):
            y[i * 16 + 3] = x[i * 16 + 3] + x[i * 16 + 3] * x[i * 16 + 3]

    assert to_text(once).count('["int",16]') == 1


def test_another_process_reads_it(tmp_path: Path) -> None:
    func = chain().func
    file = tmp_path / "func"
    file.write_text(to_text(func), encoding="ascii")
    code = (
        "import sys; from pathlib import Path; from autofuse.codegen.transport import from_text;"
        "from autofuse.codegen.digest import tir_digest; print(tir_digest(from_text(Path(sys.argv[1]).read_text())))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert run.stdout.split() == [tir_digest(func)], run.stderr


def test_what_is_no_function_is_refused() -> None:
    for text in ("{}", "[]", '{"types":[],"nodes":[]}', '{"types":[["no.such",[]]],"nodes":[[0]]}', "x"):
        with pytest.raises((KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError)):
            from_text(text)
