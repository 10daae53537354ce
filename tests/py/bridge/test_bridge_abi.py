"""The C interface: its header, its symbols, and a program that uses it."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from nemo_gym_sandbox._core import codec, lib
from nemo_gym_sandbox._core.lib import library

from .conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (ROOT / "capi" / "ngs.h").read_text()


def test_an_event_lies_as_python_reads_it() -> None:
    size, *offsets = library().layout()
    assert size == codec.EVENT.size == 24
    assert offsets == [0, 8, 12, 14, 16, 20]
    packed = codec.EVENT.pack(1, 2, 3, 4, -5, 6)
    starts = [packed.index(byte) for byte in (b"\x01", b"\x02", b"\x03", b"\x04", b"\xfb\xff", b"\x06")]
    assert starts == offsets


def test_python_has_the_headers_numbers() -> None:
    defined = {
        name: int(value)
        for name, value in re.findall(r"^#define NGS_(\w+) \(?(-?\d+)\)?(?: +/\*|$)", HEADER, re.MULTILINE)
    }
    assert library().abi == (lib.ABI_MAJOR, lib.ABI_MINOR) == (defined["ABI_MAJOR"], defined["ABI_MINOR"])
    for name, value in defined.items():
        kind, _, rest = name.partition("_")
        if kind == "EVENT" or (kind == "OP" and rest != "PROVIDER_NEW"):  # which is made by a function of its own
            assert getattr(codec, rest) == value, name
        elif name in vars(lib):
            assert getattr(lib, name) == value, name
    assert eval(re.findall(r"^#define NGS_EVENT_MAX (.*)$", HEADER, re.MULTILINE)[0]) == codec.EVENT_MAX
    assert {"EFORKED", "EAGAIN", "ECLOSED", "EABI", "EBADHANDLE", "EPANIC"} <= vars(lib).keys() & defined.keys()
    assert defined["EOF"] == lib.EEOF


def test_the_library_shows_its_functions_and_nothing_else() -> None:
    run = subprocess.run(["nm", "-D", "--defined-only", library().path], capture_output=True, text=True, check=True)
    shown = {line.split()[2] for line in run.stdout.splitlines()}
    listed = set(re.findall(r"\bngs_\w+(?=;)", (ROOT / "capi" / "exports.map").read_text()))
    documented = set(re.findall(r"\b(ngs_\w+)\(", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)))
    assert shown == listed == documented


def test_every_code_has_a_text() -> None:
    for value in re.findall(r"^#define NGS_(?:E|KIND_)\w+ \((-\d+)\)", HEADER, re.MULTILINE):
        assert library().strerror(int(value)) != "unknown code"
    assert library().strerror(-9999) == "unknown code"
    assert library().strerror(5) == "ok"


def test_build_info() -> None:
    info = library().build_info()
    assert (info["abi_major"], info["abi_minor"]) == library().abi
    assert info["go"].startswith("go1.")
    assert "mem" in info["providers"]


def test_the_header_compiles_alone_in_c_and_cpp(tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text('#include "ngs.h"\nint main(void) { return (int)sizeof(ngs_event) - 24; }\n')
    common = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", str(ROOT / "capi"), str(source)]
    subprocess.run(["gcc", "-std=c99", *common], check=True)
    subprocess.run(["gcc", "-xc++", "-std=c++11", *common], check=False)  # g++ need not be installed


def test_a_c_program_uses_the_library(tmp_path: Path) -> None:
    program = tmp_path / "sandbox"
    so = library().path
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "capi", f"-Wl,-rpath,{so.parent}"]
    subprocess.run(["gcc", *flags, "-o", program, ROOT / "tests/c/sandbox.c", so, "-lpthread"], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
