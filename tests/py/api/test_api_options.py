"""What the built-in providers accept as configuration, before their library is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nemo_gym_sandbox import SandboxCreateError, create_provider
from nemo_gym_sandbox.providers import _options as options
from nemo_gym_sandbox.providers.docker import (
    DockerConnectionConfig,
    DockerCreateConfig,
    DockerCreateError,
    DockerExecConfig,
    DockerProbeConfig,
    DockerProvider,
)
from nemo_gym_sandbox.providers.local import LocalProvider


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DockerProvider(crate={}), "DockerProvider .*'crate'.*did you mean 'create'"),  # type: ignore[call-arg]
        (lambda: DockerProvider(exec={"default_timeout": 1}), "exec .*'default_timeout'.*'default_timeout_s'"),
        (lambda: DockerProvider({"networks": "x"}), "create .*'networks'.*did you mean 'network'"),
        (lambda: DockerProvider(probe={"zzz": 1}), "probe .*'zzz'; allowed: command, "),
        (lambda: DockerProvider(connection="unix:///x"), "connection must be a mapping or DockerConnectionConfig"),  # type: ignore[arg-type]
        (lambda: LocalProvider(shel="/bin/sh"), "LocalProvider .*'shel'.*did you mean 'shell'"),  # type: ignore[call-arg]
        (lambda: create_provider({"local": {"shel": "/bin/sh"}}), "LocalProvider .*'shel'.*did you mean 'shell'"),
        (lambda: create_provider({"docker": {"exec": {"mod": 1}}}), "exec .*'mod'.*did you mean 'mode'"),
    ],
)
def test_unknown_keys_name_the_nearest(make: Any, message: str):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("block", "values", "field"),
    [
        ("create", {"start_timeout_s": 0}, "start_timeout_s"),
        ("create", {"pids_limit": 0}, "pids_limit"),
        ("create", {"publish_host": "localhost"}, "publish_host"),
        ("create", {"publish_host": 5}, "publish_host"),
        ("create", {"network": 5}, "network must be a string"),
        ("create", {"platform": 5}, "platform must be a string"),
        ("create", {"read_only": "no"}, "read_only must be true or false"),
        ("create", {"keepalive_shell": ""}, "keepalive_shell"),
        ("create", {"orphan_timeout_s": -1}, "orphan_timeout_s"),
        ("create", {"handover_timeout_s": True}, "handover_timeout_s"),
        ("create", {"cap_drop": "ALL"}, "cap_drop"),
        ("create", {"agent_transport": "sokcet"}, "agent_transport.*did you mean 'socket'"),
        ("create", {"pull_policy": "sometimes"}, "pull_policy"),
        ("exec", {"default_timeout_s": 0}, "default_timeout_s"),
        ("exec", {"default_timeout_s": float("nan")}, "default_timeout_s"),
        ("exec", {"default_timeout_s": float("inf")}, "default_timeout_s must be a finite number"),
        ("exec", {"concurrency": 0}, "concurrency"),
        ("exec", {"concurrency": 1.5}, "concurrency"),
        ("exec", {"exec_shell": ""}, "exec_shell"),
        ("exec", {"mode": "fast"}, "mode"),
        ("exec", {"max_output_bytes": -1}, "max_output_bytes"),
        ("exec", {"kill_grace_s": -0.1}, "kill_grace_s"),
        ("exec", {"mode": "agent", "extra_exec_args": ["--privileged"]}, "extra_exec_args"),
        ("probe", {"command": ["true"]}, "command must be a string"),
        ("probe", {"expected_stdout": 5}, "expected_stdout must be a string"),
        ("connection", {"host": 5}, "host must be a string"),
        ("connection", {"tls_verify": "1"}, "tls_verify must be true or false"),
        ("probe", {"timeout_s": 0}, "timeout_s"),
        ("probe", {"deadline_s": 0}, "deadline_s"),
        ("probe", {"stable_count": 0}, "stable_count"),
        ("probe", {"stable_delay_s": -1}, "stable_delay_s"),
    ],
)
def test_docker_values_that_make_no_sense(block: str, values: dict[str, Any], field: str):
    with pytest.raises(ValueError, match=f"{block}.{field}"):
        DockerProvider(**{block: values})


@pytest.mark.parametrize(
    "values",
    [
        {"shell": ""}, {"default_timeout_s": 0}, {"default_timeout_s": None}, {"concurrency": 0}, {"isolation": "jail"},
        {"network": "host"}, {"inherit_env": "PATH"}, {"max_output_bytes": -1}, {"kill_grace_s": -1},
        {"orphan_timeout_s": -1}, {"handover_timeout_s": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_local_values_that_make_no_sense(values: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(values))):
        LocalProvider(**values)


def test_a_probe_that_is_skipped_needs_no_timeout():
    assert DockerProbeConfig(command=None, timeout_s=0).command is None


def test_blocks_are_mappings_dataclasses_or_nothing():
    default = DockerExecConfig()
    assert options.block(DockerExecConfig, None, "exec") == default
    assert options.block(DockerExecConfig, {}, "exec") == default
    assert options.block(DockerExecConfig, {"concurrency": 3}, "exec").concurrency == 3
    given = DockerExecConfig(mode="engine")
    assert options.block(DockerExecConfig, given, "exec") is given


def test_defaults_of_the_docker_blocks():
    create, run, probe = DockerCreateConfig(), DockerExecConfig(), DockerProbeConfig()
    assert (create.keepalive_shell, create.start_timeout_s, create.use_init, create.network) == (
        "/bin/sh",
        600,
        True,
        None,
    )
    assert (create.read_only, create.pids_limit, create.apply_resource_limits) == (False, None, True)
    assert (create.publish_host, list(create.cap_drop), list(create.security_opt)) == ("127.0.0.1", [], [])
    assert (create.orphan_timeout_s, create.handover_timeout_s) == (60, 3600)
    assert (create.agent_transport, create.pull_policy, create.platform) == ("auto", "missing", None)
    assert (run.default_timeout_s, list(run.extra_exec_args), run.exec_shell, run.mode) == (180, [], None, "auto")
    assert (run.max_output_bytes, run.kill_grace_s) == (268435456, 0.5)
    assert (probe.command, probe.expected_stdout) == ("printf docker-sandbox-ready", "docker-sandbox-ready")
    assert (probe.timeout_s, probe.deadline_s, probe.stable_count, probe.stable_delay_s) == (30, None, 1, 0)
    assert options.plain(DockerConnectionConfig()) == {}


def test_none_travels_only_where_it_is_a_choice():
    plain = options.plain(DockerCreateConfig(start_timeout_s=None, cap_drop=("ALL",)))
    assert plain["start_timeout_s"] is None
    assert plain["cap_drop"] == ["ALL"]
    assert "network" not in plain
    assert "pids_limit" not in plain
    assert options.plain(DockerProbeConfig(command=None))["command"] is None
    assert json.loads(json.dumps(plain)) == plain


def test_docker_errors_are_create_errors():
    assert issubclass(DockerCreateError, SandboxCreateError)
    assert DockerProvider.create_error is DockerCreateError
    assert issubclass(DockerProvider.verification_error, DockerCreateError)
    assert (DockerProvider.name, LocalProvider.name) == ("docker", "local")
