"""GPU targets: names, cards, the hardware that cost models see, and what doctor says of a host without a card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autofuse.cli.doctor_ import command
from autofuse.errors import TargetError
from autofuse.target import GpuHardware, default_hardware, hardware_row, load_hardware, resolve
from autofuse.target import gpu as gpus
from autofuse.target.cards import CERTAINTIES, card_of_gfx, cards, read_card
from autofuse.target.hardware_file import is_host
from autofuse.target.needs import needs
from autofuse.target.registry import gpu_of_row


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found does not depend on the machine that the tests run on."""
    monkeypatch.setattr(gpus, "gpus_here", lambda: ())
    monkeypatch.setattr("autofuse.target.needs.gpus_here", lambda: ())
    monkeypatch.setattr(gpus, "nvidia_here", lambda: ())


def test_dcu_is_the_card_that_is_here_else_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("dcu").card == "dcu-z100"
    monkeypatch.setattr(gpus, "gpus_here", lambda: ("gfx936",))
    assert resolve("dcu").card == "dcu-bw1000"


@pytest.mark.parametrize(
    ("text", "card", "code", "wave", "units"),
    [
        ("dcu-z100", "dcu-z100", "gfx906", 64, 60),
        ("dcu-k100ai", "dcu-k100ai", "gfx906", 64, 120),
        ("dcu-bw1000", "dcu-bw1000", "gfx906", 64, 80),
        ("rocm -mcpu=gfx936", "dcu-bw1000", "gfx906", 64, 80),  # LLVM does not know it, a card does
        ("rocm -mcpu=gfx906", "", "gfx906", 64, 60),
        ("rocm -mcpu=gfx90a", "", "gfx90a", 64, 60),
        ("rocm -mcpu=gfx1100", "", "gfx1100", 32, 60),
        ('{"kind": "rocm", "mcpu": "gfx1030"}', "", "gfx1030", 32, 60),
    ],
)
def test_a_gpu_target_says_what_code_is_for(text: str, card: str, code: str, wave: int, units: int) -> None:
    target = resolve(text, 3)
    assert (target.kind, target.device, target.card, target.mcpu, target.isa) == ("rocm", "gpu", card, code, code)
    assert (target.wave, target.threads, target.gpu_hardware.cores) == (wave, 3, units)
    assert resolve(target.text) == target
    hardware = load_hardware(target)
    assert hardware == default_hardware(target) and isinstance(hardware, GpuHardware)
    assert hardware.kind == "gpu" and hardware.lanes == 4 and hardware.wave == wave and hardware.fused
    assert target.vector_bytes == 16 and not is_host(target)


def test_tvm_is_told_the_limits_of_a_workgroup() -> None:
    made = resolve("dcu-k100ai").tvm_target()
    assert made.kind.name == "rocm" and made.attrs["mcpu"] == "gfx906"
    assert int(made.attrs["max_num_threads"]) == 256 and int(made.attrs["thread_warp_size"]) == 64


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rocm -mcpu=gfx938", "gfx908"),
        ("rocm -mcpu=gfx9999", "dcu-z100"),
        ("rocm -mcpu=vega", "unknown to LLVM"),
        ("rocm", "rocm -mcpu=gfx906"),
        ("rocm -mcpu=gfx906 -speed=2", "speed"),
        ("dcu-z100 -mcpu=gfx906", "takes no options"),
        ("dcu-z1000", "dcu-z100"),
        ("cuda -arch=gfx906", "cuda -arch=sm_90"),
        ("cuda -mcpu=sm_90", "unknown for cuda"),
        ('{"kind": "rocm", "card": "z100"}', "dcu-z100"),
    ],
)
def test_unknown_gpus_get_one_line_before_tvm_ends_the_process(text: str, says: str) -> None:
    with pytest.raises(TargetError, match=r"^[^\n]+$") as caught:
        resolve(text)
    assert says in str(caught.value)


def test_every_figure_of_a_card_has_a_source_and_a_certainty() -> None:
    assert set(cards()) == {"dcu-z100", "dcu-k100ai", "dcu-bw1000", "nvidia-h200"}
    for card in cards().values():
        assert card.facts and all(f.source and f.certainty in CERTAINTIES for f in card.facts.values())
        assert card_of_gfx(card.gfx) == card
        assert {"cores", "frequency_hz", "memory_bandwidth", "lds_bytes"} <= set(card.facts)
        # What is a field is used as it stands.
        for name, fact in card.facts.items():
            if hasattr(card.hardware, name):
                assert getattr(card.hardware, name) == fact.value, (card.name, name)
    assert cards()["dcu-z100"].weakest == "weak" and card_of_gfx("gfx1") is None


def test_rates_follow_from_clock_and_units() -> None:
    z100, k100 = cards()["dcu-z100"].hardware, cards()["dcu-k100ai"].hardware
    assert 2 * z100.fma_per_second * z100.cores == pytest.approx(10.1e12, rel=0.01)
    assert 2 * k100.fma_per_second * k100.cores == pytest.approx(21.5e12, rel=0.01)
    assert k100.l2_bandwidth * k100.cores == pytest.approx(z100.l2_bandwidth * z100.cores * 1.4 / 1.319)
    assert z100.l3_bytes == z100.l2_bytes == 8 << 20


def test_a_damaged_card_is_named(tmp_path: Path) -> None:
    from autofuse.target.cards import FOLDER

    good = json.loads((FOLDER / "dcu-z100.json").read_text())
    changes: list[dict[str, object]] = [
        {"version": 2},
        {"facts": {"cores": {"value": 0, "certainty": "good", "source": "x"}}},
        {"facts": {"cores": {"value": 60, "certainty": "sure", "source": "x"}}},
        {"wave": "wide"},
    ]
    for change in changes:
        path = tmp_path / "card.json"
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(TargetError, match=r"card\.json is no card description"):
            read_card(path)
    with pytest.raises(TargetError, match="cannot read"):
        read_card(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("registers", "lds", "threads", "waves"),
    [
        (24, 0, 64, 40),  # 256 / 24 = 10 waves a SIMD
        (25, 0, 64, 36),  # handed out by four: 256 / 28 = 9
        (128, 0, 256, 8),  # two waves a SIMD, four waves a workgroup
        (129, 0, 256, 4),
        (256, 0, 1024, 0),  # 16 waves at one a SIMD do not fit
        (32, 32 << 10, 256, 8),  # LDS holds two workgroups
        (32, (32 << 10) + 1, 256, 4),
        (32, (64 << 10) + 1, 256, 0),
        (32, 0, 1025, 0),
    ],
)
def test_resident_waves_of_a_unit(registers: int, lds: int, threads: int, waves: int) -> None:
    hardware = GpuHardware()
    assert hardware.resident_waves(registers, lds, threads) == waves
    assert hardware.occupancy(registers, lds, threads) == waves / 40
    narrow = replace(hardware, wave=32)
    assert narrow.waves_of(65) == 3 and hardware.waves_of(65) == 2


@pytest.mark.parametrize("text", ["cuda -arch=sm_90", "cuda -arch=sm_80", "nvidia-h200"])
def test_nvidias_gpus_are_targets_of_waves_of_32(text: str) -> None:
    target = resolve(text, 3)
    assert (target.kind, target.device, target.wave, target.mcpu) == ("cuda", "gpu", 32, target.isa)
    assert resolve(target.text) == target and target.threads == 3
    hardware = target.gpu_hardware
    assert hardware.lanes == 4 and hardware.waves_of(65) == 3
    # Registers of a lane, LDS of a workgroup and threads are limited by themselves, beside what a unit holds.
    assert hardware.resident_waves(255, 0, 128) == 8 and hardware.resident_waves(256, 0, 128) == 0
    assert hardware.resident_waves(32, 48 << 10, 128) == 16 and hardware.resident_waves(32, (48 << 10) + 1, 128) == 0
    made = target.tvm_target()
    assert made.kind.name == "cuda" and made.attrs["arch"] == target.mcpu and int(made.attrs["max_num_threads"]) == 256
    row = hardware_row(target)
    assert gpu_of_row(row).gpu_hardware == hardware and row.architecture == "nvptx"


def test_cuda_is_the_card_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "nvidia_here", lambda: (("sm_90", "NVIDIA H200"),))
    assert resolve("cuda").card == "nvidia-h200"
    monkeypatch.setattr(gpus, "nvidia_here", lambda: (("sm_86", "NVIDIA RTX A2000"),))
    assert (resolve("cuda").card, resolve("cuda").mcpu) == ("", "sm_86")


def test_a_host_for_cuda_is_told_the_steps(tmp_path: Path) -> None:
    found = needs(resolve("nvidia-h200"), tmp_path, lambda name: name == "target.build.cuda")
    assert [n.purpose for n in found] == ["compile", "compile", "run", "run", "run-opencl"]
    assert [bool(n.found) for n in found] == [True, False, False, False, False]
    assert "nvcc" in found[1].step


def test_gpus_have_hardware_rows_of_their_own() -> None:
    rows = {hardware_row(resolve(name)).digest for name in ("dcu-z100", "dcu-bw1000", "rocm -mcpu=gfx906", "llvm")}
    assert len(rows) == 4


def test_a_host_without_anything_is_told_the_steps(tmp_path: Path) -> None:
    found = needs(resolve("dcu-bw1000"), tmp_path, lambda name: name == "target.build.rocm")
    assert [n.purpose for n in found] == ["compile", "compile", "finish", "run", "run", "run-opencl"]
    assert [bool(n.found) for n in found] == [True, False, False, False, False, False]
    assert all(n.step for n in found) and "DTK" in found[2].step
    assert "finish" not in {n.purpose for n in needs(resolve("dcu-z100"), tmp_path, lambda _: False)}


def test_a_host_with_dtk_lacks_nothing(tmp_path: Path) -> None:
    for name in ("opt/dtk/llvm/bin/ld.lld", "opt/dtk/llvm/bin/clang", "opt/dtk/hip/lib/libgalaxyhip.so", "dev/kfd",
                 "etc/OpenCL/vendors/dtk.icd"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert all(n.found for n in needs(resolve("dcu-bw1000"), tmp_path, lambda _: True))


def test_doctor_says_what_is_missing_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.measure.gpu_runner.devices_here", lambda kind: [("rocm:0", f"a card of {kind}")])
    said = CliRunner().invoke(command, ["--target", "dcu-bw1000"], catch_exceptions=False).output
    assert "a card of rocm: --device 'rocm:0'" in said
    assert "gfx936" in said and "DTK" in said and "assumed" in said and "NCHW4c" in said
    report = json.loads(CliRunner().invoke(command, ["--target", "dcu", "--json"], catch_exceptions=False).output)
    assert report["card"]["name"] == "dcu-z100" and report["hardware"]["cores"] == 60
    assert report["devices"] == [{"device": "rocm:0", "title": "a card of rocm"}]
    assert {n["purpose"] for n in report["needs"]} == {"compile", "run", "run-opencl"}
    with pytest.raises(TargetError, match="cannot be calibrated"):
        CliRunner().invoke(command, ["--target", "dcu", "--calibrate"], catch_exceptions=False)
