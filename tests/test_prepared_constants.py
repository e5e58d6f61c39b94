"""Constants that kernels read in another form: as weights of programs, through fallbacks, in measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from codegen_cases import TARGET, alone, analysed_model, of_kind, program_of, run_executable, taken
from frontend_graphs import model, node, random_inputs, run_onnxruntime, weights

from autofuse.codegen.build import build_program, build_with_fallback
from autofuse.codegen.kernels import Assignment, KernelBuilder
from autofuse.codegen.program import Program
from autofuse.compiler import Analysed
from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.graph.model import Group
from autofuse.measure.cold import cold_arguments, copies_needed
from autofuse.measure.jobs import MeasureJob, MeasureLimits, fill_inputs
from autofuse.measure.kernels import KernelSource, items_of
from autofuse.schedule.cpu.winograd import WinogradFamily
from autofuse.schedule.registry import families
from autofuse.search.candidates import legal_groups
from autofuse.search.costing import choices_of
from autofuse.search.problem import Thresholds

FAMILY = WinogradFamily()


def network() -> Any:
    """Two convolutions, one behind the other, with the same weights."""
    return model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("Sigmoid", ["c"], ["y"]),
        ],
        {"x": [1, 24, 13, 12]},
        ["y"],
        {"w": weights(24, 24, 3, 3)},
    )


@pytest.fixture(scope="module")
def analysed() -> Analysed:
    return analysed_model(network())


def assigned(analysed: Analysed, forms: Sequence[int]) -> list[Assignment]:
    """Every operator alone; the convolutions by F(m×m) for the m of `forms`, directly for 0."""
    wanted = dict(zip(of_kind(analysed, "nn.conv2d"), forms, strict=True))
    found = []
    for op in analysed.graph.operators:
        m = wanted.get(op.index, 0)
        if m:
            group = Group.of(analysed.graph, [op.index])
            config = next(c for c in FAMILY.configs(group, analysed.hardware) if c.m == m)
            found.append(Assignment(group, FAMILY, config))
        else:
            found.append(taken(analysed, [op.index]))
    return found


def checked(analysed: Analysed, assignments: Sequence[Assignment]) -> Program:
    """The program of the assignments, built, run and compared with ONNX Runtime."""
    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone(analysed))
    program = program_of(analysed, builder.kernels(assignments))
    arrays = random_inputs(analysed.prepared)
    (ours,) = run_executable(program, build_program(program.module, TARGET), arrays)
    (theirs,) = run_onnxruntime(network(), analysed.prepared, arrays)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    return program


def shapes(program: Program) -> list[tuple[int, ...]]:
    return sorted(tuple(int(e) for e in w.shape) for w in program.weights if len(w.shape) > 3)


def raw(analysed: Analysed) -> tuple[int, ...]:
    """The shape of the convolutions' weights as lowering packs them."""
    lanes = analysed.hardware.lanes
    return (-(-24 // lanes), -(-24 // lanes), 3, 3, lanes, lanes)


def test_a_constant_that_two_kernels_read_alike_is_prepared_once(analysed: Analysed) -> None:
    made = shapes(checked(analysed, assigned(analysed, [4, 4])))
    assert len(made) == len(
        {t for op in of_kind(analysed, "nn.conv2d") for t in analysed.graph.operators[op].inputs[1:]}
    )
    assert raw(analysed) not in made and all(shape[1] == 36 for shape in made)


def test_each_form_is_a_weight_of_its_own_and_what_is_read_as_it_is_stays(analysed: Analysed) -> None:
    assert {shape[1] for shape in shapes(checked(analysed, assigned(analysed, [4, 2])))} == {16, 36}
    mixed = shapes(checked(analysed, assigned(analysed, [0, 2])))
    assert raw(analysed) in mixed and any(shape[1] == 16 for shape in mixed)


def test_what_takes_the_place_of_a_failed_kernel_reads_the_constant_as_it_is(analysed: Analysed) -> None:
    """One that does not build, and one that no family schedules: plain loops."""
    assignments = assigned(analysed, [4, 0])
    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone(analysed))
    kernels = builder.kernels(assignments)
    at = next(i for i, k in enumerate(kernels) if k.assignment.family.name == "winograd")
    assert kernels[at].prepared
    instead = builder.replace(kernels[at], RuntimeError("does not build"))
    assert len(instead) == 1 and instead[0].assignment.family.name == "conv2d" and not instead[0].prepared
    program = program_of(analysed, [*kernels[:at], *instead, *kernels[at + 1 :]])
    assert raw(analysed) in shapes(program) and not any(len(shape) == 4 and shape[1] == 36 for shape in shapes(program))


def test_a_kernel_of_plain_loops_prepares_nothing(analysed: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.codegen import kernels as module

    monkeypatch.setattr(module, "families", lambda kind: ())
    assignments = assigned(analysed, [4, 0])
    which = next(a for a in assignments if a.family.name == "winograd")
    builder = KernelBuilder(analysed.fuser, analysed.hardware, lambda group: None)
    builder.schedule(which)
    kernels = builder.split(which, RuntimeError("does not build"))
    assert kernels[0].plain and not kernels[0].prepared
    rest = [k for a in assignments if a is not which for k in [builder.schedule(a)]]
    program, executable = build_with_fallback([*kernels, *rest], builder, lambda k: program_of(analysed, k), TARGET)
    arrays = random_inputs(analysed.prepared)
    (ours,) = run_executable(program, executable, arrays)
    np.testing.assert_allclose(ours, run_onnxruntime(network(), analysed.prepared, arrays)[0], atol=2e-5)


def test_the_cheapest_of_both_families_is_chosen(analysed: Analysed) -> None:
    """The search is offered whichever is predicted to be faster."""
    model = AnalyticalCostModel(analysed.hardware)
    legal = legal_groups(analysed.graph, hardware=analysed.hardware, families=families())
    choices, _ = choices_of(analysed.graph, legal, model, hardware=analysed.hardware, thresholds=Thresholds())
    which = of_kind(analysed, "nn.conv2d")[0]
    choice = next(c for c in choices if c.group.members == (which,))
    items = items_of([choice.group], families(), analysed.hardware, "net", configs=100)
    costs = model.costs([i.candidate for i in items])
    best = items[int(np.argmin(costs))].candidate
    assert {i.candidate.family.name for i in items} == {"conv2d", "winograd"}
    assert (choice.family, choice.config, choice.cost) == (best.family.name, best.config.text, min(costs))


def test_a_measured_kernel_is_checked_on_the_constants_of_the_model(
    analysed: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child prepares what it filled in: right outputs are those of the raw constant, others are wrong."""
    from autofuse.measure import timing
    from autofuse.measure.compiler import factory as compiler
    from autofuse.measure.worker import factory as worker
    from autofuse.measure.worker import kernel_arrays

    # Disturbed samples are left out, which is not what is looked at here.
    monkeypatch.setattr(timing, "_undisturbed", lambda times, usual, count, limits: list(range(count)))
    group = Group.of(analysed.graph, of_kind(analysed, "nn.conv2d")[:1])
    items = items_of([group], families(), analysed.hardware, "net", configs=1)
    item = next(i for i in items if i.candidate.family.name == "winograd")
    source = KernelSource([analysed])
    request = source.request(item, "candidate", tmp_path / "kernel.so")
    assert [a.shape for a in request.arguments if a.preparation] == [raw(analysed)]
    assert [a.shape for a in request.arguments if a.constant] == [raw(analysed)]
    right = source.reference(item.candidate, fill_inputs(request.arguments, 0))
    other = source.reference(item.candidate, fill_inputs(request.arguments, 1))
    compiler()(asdict(request))
    measure = worker()

    path = tmp_path / "expected.npz"
    limits = MeasureLimits(budget=0.05, min_samples=3, max_samples=3, most_cold=2)
    # Transformed, the weights have 64 to 147 kB: enough to be timed cold, which they have not as they are.
    job = MeasureJob(
        "", "", request.library, request.function, request.arguments, str(path), 2e-5, limits=limits, last_cache=2 << 20
    )

    def answer(expected: list[Any]) -> dict[str, Any]:
        np.savez(path, *expected)
        return measure(job.to_dict())

    found = answer(right)
    assert found["status"] == "ok" and len(found["samples"]) >= 3 and 2 <= len(found["cold_samples"]) <= 4
    assert answer(other)["status"] == "wrong"

    arrays = kernel_arrays(job.arguments, 0)
    (at,) = [i for i, a in enumerate(job.arguments) if a.constant]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    sets = cold_arguments(job, arrays, tensors)
    assert len(sets) == copies_needed(arrays[at].nbytes, job.last_cache) > 20
    for given in sets:
        assert all(a is b for i, (a, b) in enumerate(zip(given, tensors, strict=True)) if i != at)
        assert (
            np.array_equal(given[at].numpy(), arrays[at]) and arrays[at].shape[1] == (item.candidate.config.m + 2) ** 2
        )
    assert len({id(given[at]) for given in sets}) == len(sets)
