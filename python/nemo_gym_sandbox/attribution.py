"""Who and what a sandbox is for: metadata that lets a shared backend's owner find whose it is."""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["log_attribution_once", "resolve_attribution", "resolve_run_id"]

LOGGER = logging.getLogger(__name__)

_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "team": ("NEMO_GYM_TEAM", "SLURM_JOB_ACCOUNT"),
    "user": ("NEMO_GYM_USER", "SLURM_JOB_USER"),
    "workload": ("NEMO_GYM_WORKLOAD", "SLURM_JOB_NAME", "NEMO_GYM_CONFIG_PATH"),
}

_process_run_id: str | None = None
_logged = False


def resolve_attribution(
    team: str | None = None,
    user: str | None = None,
    workload: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Team, user and workload as far as they are known.

    An argument goes before the ``NEMO_GYM_*`` variables, those before SLURM's; the user is at last the login, unless
    that is root. Blank values count as unset.
    """
    env = os.environ if environ is None else environ
    found: dict[str, str] = {}
    for key, given in (("team", team), ("user", user), ("workload", workload)):
        value = _first(given, *(env.get(name) for name in _SOURCES[key]))
        if value is None and key == "user":
            value = _login()
        if value is not None:
            found[key] = value
    return found


def resolve_run_id(run: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The run's id: the argument, else ``NEMO_GYM_RUN_ID``, else 12 hex digits made once per process."""
    global _process_run_id
    env = os.environ if environ is None else environ
    value = _first(run, env.get("NEMO_GYM_RUN_ID"))
    if value is not None:
        return value
    if _process_run_id is None:
        _process_run_id = secrets.token_hex(6)
    return _process_run_id


def log_attribution_once(metadata: Mapping[str, str]) -> None:
    """Log the metadata at INFO, once per process; an empty mapping is not logged and does not count."""
    global _logged
    if metadata and not _logged:
        _logged = True
        LOGGER.info("Sandbox attribution metadata: %s", dict(metadata))


def _first(*values: str | None) -> str | None:
    return next((value.strip() for value in values if value is not None and value.strip()), None)


def _login() -> str | None:
    import getpass

    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None
    login = login.strip()
    return None if not login or login.lower() == "root" else login
