"""Everything public has a type that a checker can see, in an installed package too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nemo_gym_sandbox

ROOT = Path(nemo_gym_sandbox.__file__).parent.parent


def test_every_public_symbol_has_a_known_type(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--ignoreexternal", "--verifytypes", "nemo_gym_sandbox"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,  # a configuration in the project must not help
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    unknown = [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in report["symbols"]
        if symbol["isExported"]
        for diagnostic in symbol["diagnostics"]
    ]
    assert unknown == []
    assert report["completenessScore"] == 1
    modules = {module["name"] for module in report["modules"]}
    assert {"nemo_gym_sandbox.api", "nemo_gym_sandbox.providers.base", "nemo_gym_sandbox.testing"} <= modules
