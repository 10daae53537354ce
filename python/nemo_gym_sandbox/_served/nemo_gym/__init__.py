"""Stands in for nemo_gym in child processes of ``nemo-gym-sandbox run``: nemo_gym_sandbox serves nemo_gym.sandbox."""

import sys as _sys
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path

if _find_spec("nemo_gym_sandbox") is None:  # it is not installed: this process has it by another path
    _sys.path.append(str(_Path(__file__).resolve().parents[3]))

from nemo_gym_sandbox._install import serve_below as _serve_below

_serve_below()
