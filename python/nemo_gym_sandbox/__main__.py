"""The command line: ``python -m nemo_gym_sandbox VERB``, also installed as ``nemo-gym-sandbox``.

A verb is a module of ``_cli``, or one named here, with a function ``main(arguments: list[str]) -> int`` that gives the
exit status. The first line of the module's docstring is what the overview says of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

_PACKAGE = "nemo_gym_sandbox"
_HERE = {"run": f"{_PACKAGE}._run"}


def _verbs() -> dict[str, str]:
    """The verbs and their modules, which are not loaded."""
    found = dict(_HERE)
    folder = find_spec(f"{_PACKAGE}._cli")
    if folder is not None and folder.submodule_search_locations is not None:
        for module in iter_modules(folder.submodule_search_locations):
            if not module.name.startswith("_"):
                found[module.name.replace("_", "-")] = f"{_PACKAGE}._cli.{module.name}"
    return found


def _overview(verbs: dict[str, str]) -> str:
    lines = ["usage: nemo-gym-sandbox VERB ...", "", "verbs, each with --help:"]
    for verb, module in sorted(verbs.items()):
        about = (import_module(module).__doc__ or "").strip().partition("\n")[0]
        lines.append(f"  {verb:<10}{about}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit status; 2 is wrong usage."""
    given = sys.argv[1:] if arguments is None else arguments
    verbs = _verbs()
    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview(verbs), file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        from nemo_gym_sandbox._version import __version__

        print(f"nemo-gym-sandbox {__version__}")
        return 0
    if given[0] not in verbs:
        from nemo_gym_sandbox.providers._options import nearest

        print(f"nemo-gym-sandbox: there is no verb {given[0]!r}{nearest(given[0], verbs)}", file=sys.stderr)
        print(_overview(verbs), file=sys.stderr)
        return 2
    verb: Any = import_module(verbs[given[0]])
    return verb.main(given[1:])


if __name__ == "__main__":
    sys.exit(main())
