"""Who a sandbox is for, and models for handing one over."""

from __future__ import annotations

import getpass
import logging
import re

import pytest
from pydantic import ValidationError

from nemo_gym_sandbox import attribution
from nemo_gym_sandbox.access import DirectSandboxConnection, SandboxAccess
from nemo_gym_sandbox.attribution import log_attribution_once, resolve_attribution, resolve_run_id

SLURM = {"SLURM_JOB_ACCOUNT": "acc", "SLURM_JOB_USER": "slu", "SLURM_JOB_NAME": "job"}
OURS = {"NEMO_GYM_TEAM": "team", "NEMO_GYM_USER": "user", "NEMO_GYM_WORKLOAD": "load"}


def test_arguments_before_ours_before_slurms(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "login")
    assert resolve_attribution("t", "u", "w", SLURM | OURS) == {"team": "t", "user": "u", "workload": "w"}
    assert resolve_attribution(environ=SLURM | OURS) == {"team": "team", "user": "user", "workload": "load"}
    assert resolve_attribution(environ=SLURM) == {"team": "acc", "user": "slu", "workload": "job"}
    assert resolve_attribution(environ={"NEMO_GYM_CONFIG_PATH": "c.yaml"}) == {"user": "login", "workload": "c.yaml"}
    assert resolve_attribution(" ", "", "\t", OURS | {"NEMO_GYM_TEAM": "  "} | SLURM)["team"] == "acc"


@pytest.mark.parametrize("login", ["root", "ROOT", "", None])
def test_a_login_that_says_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch, login: str | None):
    def getuser() -> str:
        if login is None:
            raise KeyError("uid not found")
        return login

    monkeypatch.setattr(getpass, "getuser", getuser)
    assert resolve_attribution(environ={}) == {}
    assert resolve_attribution(environ={"NEMO_GYM_USER": "root"}) == {"user": "root"}


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEMO_GYM_TEAM", "from-the-process")
    monkeypatch.setenv("NEMO_GYM_RUN_ID", "run-from-the-process")
    assert resolve_attribution()["team"] == "from-the-process"
    assert resolve_run_id() == "run-from-the-process"


def test_run_id():
    assert resolve_run_id("mine", {"NEMO_GYM_RUN_ID": "env"}) == "mine"
    assert resolve_run_id(None, {"NEMO_GYM_RUN_ID": "env"}) == "env"
    made = resolve_run_id(environ={"NEMO_GYM_RUN_ID": " "})
    assert re.fullmatch("[0-9a-f]{12}", made)
    assert resolve_run_id(environ={}) == made


def test_attribution_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(attribution, "_logged", False)
    caplog.set_level(logging.INFO)
    log_attribution_once({})
    assert not caplog.records
    for _ in range(2):
        log_attribution_once({"team": "t"})
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "Sandbox attribution metadata" in caplog.text


def test_access_round_trip():
    access = SandboxAccess(
        connection=DirectSandboxConnection(provider_config_ref="sandbox", descriptor={"sandbox_id": "x", "ports": [1]}),
        workdir="/w",
    )
    assert access.connection.kind == "direct"
    assert SandboxAccess.model_validate(access.model_dump()) == access
    assert SandboxAccess.model_validate_json(access.model_dump_json()) == access
    for wrong in (
        {**access.model_dump(), "extra": 1},
        {"connection": {**access.connection.model_dump(), "extra": 1}, "workdir": "/w"},
        {"connection": {**access.connection.model_dump(), "kind": "remote"}, "workdir": "/w"},
        {"connection": {**access.connection.model_dump(), "descriptor": {"x": object()}}, "workdir": "/w"},
    ):
        with pytest.raises(ValidationError):
            SandboxAccess.model_validate(wrong)
