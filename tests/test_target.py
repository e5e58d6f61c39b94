"""Targets: what a user writes, the host's features, the hardware row and the hardware file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from autofuse.errors import RecordError, TargetError
from autofuse.target import (
    Hardware,
    Target,
    default_hardware,
    fingerprint,
    hardware_row,
    load_hardware,
    missing_features,
    resolve,
)
from autofuse.target import hardware_file as files
from autofuse.target.fingerprint import HardwareRow
from autofuse.target.host import HostCpu, isa_of, processors, read_host

ROW = HardwareRow("x86_64", "AuthenticAMD", 25, 1, 1, ("avx2", "fma"), 1 << 15, 1 << 19, 1 << 25, 2, "0.27", "AMD EPYC")


def machine(
    root: Path, cpus: int = 4, smt: int = 2, flags: str = "pni sse4_1 avx2 fma bmi1 abm avx512_vnni aes"
) -> Path:
    """A fake /proc and /sys: `cpus` logical processors, `smt` to a core, two cores to an L3."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(
        f"processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 7\n"
        f"model name\t: Fake CPU\ncpu MHz\t\t: 2500.0\nflags\t\t: {flags}\n\nprocessor\t: 1\nmodel\t\t: 99\n"
    )
    for cpu in range(cpus):
        base = root / f"sys/devices/system/cpu/cpu{cpu}"
        (base / "topology").mkdir(parents=True)
        first = cpu - cpu % smt
        siblings = f"{first}-{first + smt - 1}" if smt > 1 else str(cpu)
        (base / "topology/thread_siblings_list").write_text(siblings + "\n")
        half = f"{0 if cpu < cpus // 2 else cpus // 2}-{cpus // 2 - 1 if cpu < cpus // 2 else cpus - 1}"
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "48K", siblings), (1, "Instruction", "32K", siblings), (2, "Unified", "1M", siblings),
             (3, "Unified", "16M", half)]
        ):  # fmt: skip
            cache = base / f"cache/index{index}"
            cache.mkdir(parents=True)
            for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                (cache / name).write_text(f"{value}\n")
    return root


def test_host_is_read_from_the_system_files(tmp_path: Path) -> None:
    host = read_host(machine(tmp_path), cpus=(0, 1, 2, 3))
    assert (host.vendor, host.family, host.model, host.stepping) == ("GenuineIntel", 6, 85, 7)
    assert host.features == ("avx2", "avx512vnni", "bmi", "fma", "lzcnt", "sse3", "sse4.1")  # aes is in no kernel
    assert (host.l1_bytes, host.l2_bytes, host.l3_bytes) == (48 << 10, 1 << 20, 32 << 20)
    assert host.frequency_hz == 2.5e9


def test_caches_and_processors_out_of_reach_do_not_count(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert read_host(root, cpus=(0, 1)).l3_bytes == 16 << 20
    assert processors(root, cpus=(0, 1, 2, 3)) == 2  # hardware threads of a core count once
    assert processors(root, cpus=(0, 2)) == 2
    assert processors(root, cpus=(0, 1)) == 1


def test_container_quota_lowers_the_thread_count(tmp_path: Path) -> None:
    root = machine(tmp_path, cpus=8, smt=1)
    assert processors(root, cpus=tuple(range(8))) == 8
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text("250000 100000\n")
    assert processors(root, cpus=tuple(range(8))) == 3
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert processors(root, cpus=tuple(range(8))) == 8


def test_a_machine_without_system_files_degrades(tmp_path: Path) -> None:
    host = read_host(tmp_path, cpus=(0,))
    assert host.features == () and host.l2_bytes == 0 and host.frequency_hz == 0.0
    assert processors(tmp_path, cpus=(0, 1)) == 2
    hardware = default_hardware(Target(features=("avx2", "fma"), threads=3), host)
    assert hardware.l2_bytes > 0 and hardware.frequency_hz > 0 and hardware.cores == 3


@pytest.mark.parametrize(
    ("features", "isa", "lanes", "registers"),
    [
        (("sse2", "sse4.1"), "sse4", 4, 16),
        (("avx2",), "sse4", 4, 16),  # AVX2 without FMA is of no use to the schedules
        (("avx2", "fma"), "avx2", 8, 16),
        (("avx2", "fma", "avx512f"), "avx2", 8, 16),  # Knights Landing's AVX-512 lacks what kernels need
        (("avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"), "avx512", 16, 32),
        (("neon",), "neon", 4, 32),
    ],
)
def test_isa_and_registers_follow_from_features(
    features: tuple[str, ...], isa: str, lanes: int, registers: int
) -> None:
    target = Target(features=features)
    assert isa_of(features) == target.isa == isa
    assert (target.vector_bytes // 4, target.vector_registers) == (lanes, registers)
    hardware = default_hardware(target)
    assert (hardware.isa, hardware.lanes, hardware.vector_registers) == (isa, lanes, registers)


def test_llvm_is_this_machine_and_can_run_here() -> None:
    target = resolve("llvm", 3)
    assert target.kind == "llvm" and target.threads == 3 and target.mcpu not in {"", "native"}
    assert missing_features(target.features) == []
    made = target.tvm_target()
    assert made.kind.name == "llvm" and int(made.attrs["num-cores"]) == 3 and made.attrs["mcpu"] == target.mcpu
    assert resolve(threads=None).threads == processors()


def test_option_string_and_json_name_the_same_target() -> None:
    by_options = resolve("llvm -mcpu=skylake-avx512 -num-cores=4")
    by_json = resolve('{"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 4}')
    assert by_options == by_json and by_options.threads == 4 and by_options.isa == "avx512"
    assert resolve(by_options.text) == by_options
    assert resolve("llvm -mcpu=skylake-avx512 -num-cores=4", threads=1).threads == 1


def test_attributes_correct_the_features() -> None:
    target = resolve("llvm -mcpu=skylake-avx512 -mattr=-avx512f,-avx512dq", 2)
    assert target.isa == "avx2" and "avx512f" not in target.features
    assert resolve(target.text, 2) == target
    assert [str(a) for a in target.tvm_target().attrs["mattr"]] == ["-avx512f", "-avx512dq"]


def test_features_that_the_machine_hides_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.target import registry

    registry._resolve.cache_clear()
    real = registry.host_features()
    monkeypatch.setattr(registry, "host_features", lambda: frozenset(real - {"bmi2"}))
    target = resolve("llvm", 2)
    registry._resolve.cache_clear()
    assert "bmi2" not in target.features
    if "bmi2" in real:
        assert target.attributes == ("-bmi2",)


def test_foreign_architecture_is_described_but_is_not_the_host() -> None:
    target = resolve("llvm -mcpu=cortex-a72 -mtriple=aarch64-linux-gnu", 4)
    assert target.isa == "neon" and not files.is_host(target)
    hardware = load_hardware(target)
    assert (hardware.isa, hardware.cores, hardware.lanes) == ("neon", 4, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vulkan", "llvm"),
        ("", "llvm"),
        ("llvm -mcpu=znver33", "znver3"),
        ("llvm -mcpu", "-name=value"),
        ("llvm 'x", "cannot be read"),
        ("llvm -speed=9", "num-cores"),
        ("llvm -num-cores=two", "whole number"),
        ("llvm -num-cores=-2", "1 or more"),
        ("llvm -mattr=avx2", "+ or -"),
        ("llvm -mtriple=mips-unknown-linux", "aarch64-linux-gnu"),
        ("llvm -mtriple=arm64-apple-darwin", "not of Linux"),
        ('{"kind": "llvm"', "JSON"),
        ('{"mcpu": "znver3"}', "llvm"),
    ],
)
def test_unknown_targets_get_one_line_that_names_what_is_known(text: str, says: str) -> None:
    with pytest.raises(TargetError, match=r"^[^\n]+$") as caught:
        resolve(text)
    assert says in str(caught.value)


def test_zero_threads_are_refused() -> None:
    with pytest.raises(TargetError, match="1 or more"):
        resolve("llvm", 0)


def test_missing_features_lists_what_would_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.target import registry

    monkeypatch.setattr(registry, "host_features", lambda: frozenset({"avx2", "fma"}))
    assert missing_features(["fma", "avx512f", "avx2", "avx512bw"]) == ["avx512bw", "avx512f"]
    assert missing_features(["fma", "slow-3ops-lea", "pku"]) == []  # tuning hints trap nothing
    monkeypatch.setattr(registry, "host_features", frozenset)
    assert missing_features(["avx512f"]) == []  # cannot tell


def test_fingerprint_is_stable_and_depends_on_what_matters() -> None:
    row = fingerprint(2)
    assert row == fingerprint(2) and row.digest == fingerprint(2).digest
    assert fingerprint(1).digest != row.digest
    assert fingerprint().threads == processors()
    assert ROW.digest == "ea6b792264308fe2"  # a change of it orphans every record
    for name, value in (("stepping", 2), ("features", ("avx2",)), ("l2_bytes", 1), ("tvm_version", "0.28")):
        assert dataclasses.replace(ROW, **{name: value}).digest != ROW.digest
    assert dataclasses.replace(ROW, model_name="AMD EPYC 7763").digest == ROW.digest


def test_a_row_says_what_code_is_compiled_for_where_it_is_not_this_machine() -> None:
    assert hardware_row(resolve("llvm", 2)) == fingerprint(2)
    older, own = hardware_row(resolve("llvm -mcpu=nehalem", 2)), fingerprint(2)
    assert older.code == "nehalem" and older.features == resolve("llvm -mcpu=nehalem").features
    assert len({older.digest, own.digest, hardware_row(resolve("llvm -mcpu=x86-64-v2", 2)).digest}) == 3
    assert HardwareRow.from_json(json.loads(json.dumps(older.to_json()))) == older
    assert "code" not in own.to_json()


def test_hardware_row_survives_json() -> None:
    assert HardwareRow.from_json(json.loads(json.dumps(ROW.to_json()))) == ROW


@pytest.mark.parametrize("change", [{"threads": "2"}, {"speed": 1}, {"vendor": None}])
def test_damaged_row_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        HardwareRow.from_json({**ROW.to_json(), **change})


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AUTOFUSE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert files.hardware_path(ROW) == tmp_path / "cache/autofuse" / f"hardware-{ROW.digest}.json"
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "own"))
    assert files.hardware_path(ROW).parent == tmp_path / "own"
    monkeypatch.delenv("AUTOFUSE_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.home() == Path.home() / ".cache/autofuse"


def test_hardware_file_round_trip_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "new/folder"))
    hardware = Hardware(name="x", fma_per_second=1.25e10, l3_bytes=12345)
    path = files.save_hardware(hardware, ROW)
    assert files.read_hardware(path) == hardware
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_load_prefers_the_calibration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
    target = resolve("llvm", 2)
    before = load_hardware(target)
    assert (before.isa, before.cores, before.vector_bytes) == (target.isa, 2, target.vector_bytes)
    calibrated = dataclasses.replace(before, fma_per_second=7.0e10)
    files.save_hardware(calibrated, fingerprint(2))
    assert load_hardware(target) == calibrated
    assert load_hardware(resolve("llvm", 1)).fma_per_second != 7.0e10  # another pool is another row
    older = dataclasses.replace(target, mcpu="generic", features=("sse2",))
    assert load_hardware(older).isa == "sse4"  # another instruction set than what was calibrated


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "other"}',
        '{"format": "autofuse-hardware", "version": 99, "hardware": {}}',
        '{"format": "autofuse-hardware", "version": 1}',
        '{"format": "autofuse-hardware", "version": 1, "hardware": {"name": "x"}}',
    ],
)
def test_damaged_hardware_file_warns_and_defaults_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
    path = files.hardware_path(fingerprint(2))
    path.write_text(text)
    with pytest.raises(TargetError, match=r"^[^\n]+$"):
        files.read_hardware(path)
    target = resolve("llvm", 2)
    with pytest.warns(UserWarning, match="default figures"):
        assert load_hardware(target) == default_hardware(target, read_host())


def test_negative_or_infinite_figures_are_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
    for value in (-1.0, float("inf"), 0, True):
        path = files.save_hardware(dataclasses.replace(Hardware(), l1_bandwidth=value), ROW)
        with pytest.raises(TargetError, match="l1_bandwidth"):
            files.read_hardware(path)


def test_unwritable_home_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "file/under"))
    with pytest.raises(TargetError, match="AUTOFUSE_HOME"):
        files.save_hardware(Hardware(), ROW)


def test_defaults_scale_with_the_instruction_set() -> None:
    narrow, wide = (
        default_hardware(Target(features=f), HostCpu(frequency_hz=3e9)) for f in (("sse2",), ("avx2", "fma"))
    )
    assert wide.fma_per_second == 4 * narrow.fma_per_second == 2 * 8 * 3e9  # half the lanes, two instructions each
    assert wide.fused and not narrow.fused
    for hardware in (narrow, wide):
        assert hardware.l1_bandwidth >= hardware.l2_bandwidth >= hardware.l3_bandwidth
