"""Finding providers by name, and the configuration that names them."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from api_doubles import MemoryProvider
from omegaconf import OmegaConf

import nemo_gym_sandbox as ngs
from nemo_gym_sandbox.providers import registry
from nemo_gym_sandbox.utils import CPU_CAP_ENV_VARS, cpu_cap_env, rewrite_image

if TYPE_CHECKING:
    from collections.abc import Callable

BUILT_IN = {
    "apptainer": "ApptainerProvider",
    "daytona": "DaytonaProvider",
    "docker": "DockerProvider",
    "e2b": "E2BProvider",
    "ecs_fargate": "EcsFargateProvider",
    "enroot": "EnrootProvider",
    "local": "LocalProvider",
    "opensandbox": "OpenSandboxProvider",
    "openshell": "OpenShellProvider",
}


class Entry:
    """An entry point of an installed distribution."""

    def __init__(self, name: str, distribution: str, target: type) -> None:
        self.name = name
        self.value = f"{distribution}:{target.__name__}"
        self.dist = types.SimpleNamespace(name=distribution)
        self.target = target
        self.loads = 0

    def load(self) -> type:
        self.loads += 1
        return self.target


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Starts from an empty registry; call it with what is installed. Returns the groups that were asked for."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_entry_points", {})

    def installed(*entries: Entry) -> list[str]:
        asked: list[str] = []

        def entry_points(*, group: str) -> list[Entry]:
            asked.append(group)
            return list(entries)

        monkeypatch.setattr(registry, "_entry_points", None)
        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        return asked

    return installed


@pytest.mark.usefixtures("install")
def test_built_in_names_and_classes():
    assert ngs.list_providers() == sorted(BUILT_IN)
    for name, cls in BUILT_IN.items():
        assert ngs.get_provider_class(name).__name__ == cls


@pytest.mark.usefixtures("install")
@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"docker", "local", "opensandbox"}))
def test_what_this_version_does_not_have_says_so(name: str):
    with pytest.raises(NotImplementedError, match=name):
        ngs.create_provider({name: {"anything": 1}})


@pytest.mark.usefixtures("install")
def test_register():
    ngs.register_provider("mine", MemoryProvider)
    assert ngs.get_provider_class("mine") is MemoryProvider
    assert "mine" in ngs.list_providers()
    for wrong in ("", "  "):
        with pytest.raises(ValueError, match="must be non-empty"):
            ngs.register_provider(wrong, MemoryProvider)
    for taken in ("mine", "docker", "e2b"):
        with pytest.raises(ValueError, match="already registered"):
            ngs.register_provider(taken, MemoryProvider)

    class Other(MemoryProvider):
        pass

    ngs.register_provider("mine", Other, override=True)
    ngs.register_provider("docker", Other, True)
    assert ngs.get_provider_class("mine") is ngs.get_provider_class("docker") is Other


@pytest.mark.usefixtures("install")
def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ValueError, match=r"Unknown sandbox provider 'dokcer'.*'apptainer'.*did you mean 'docker'"):
        ngs.get_provider_class("dokcer")


@pytest.mark.usefixtures("install")
def test_create_provider_shapes():
    made: list[dict[str, Any]] = []

    class Mine:
        def __init__(self, *, colour: object = "red") -> None:
            made.append({"colour": colour})

    ngs.register_provider("mine", Mine)
    ngs.create_provider({"mine": {"colour": "blue"}})
    ngs.create_provider({"mine": None})
    ngs.create_provider(OmegaConf.create({"mine": {"colour": ["${.1}", "green"]}}))
    assert made == [{"colour": "blue"}, {"colour": "red"}, {"colour": ["green", "green"]}]
    assert type(made[2]["colour"]) is list
    for shape in ({}, {"mine": {}, "local": {}}):
        with pytest.raises(ValueError, match="exactly one provider name"):
            ngs.create_provider(shape)
    for key in ("", 5, None):
        with pytest.raises(ValueError, match="non-empty string"):
            ngs.create_provider({key: {}})  # type: ignore[dict-item]
    for shape in ("mine", [("mine", {})]):
        with pytest.raises(TypeError, match="must be a mapping"):
            ngs.create_provider(shape)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a mapping"):
        ngs.create_provider({"mine": "blue"})
    with pytest.raises(TypeError, match=r"'color'.*did you mean 'colour'"):
        ngs.create_provider({"mine": {"color": "blue"}})
    assert len(made) == 3


def test_entry_points_are_found_once_and_last(install: Callable[..., list[str]]):
    class Theirs(MemoryProvider):
        pass

    entry = Entry("theirs", "their-package", Theirs)
    asked = install(entry)
    ngs.register_provider("mine", MemoryProvider)
    assert ngs.get_provider_class("mine") is MemoryProvider
    assert ngs.get_provider_class("local").__name__ == "LocalProvider"
    assert asked == []  # nothing looked for yet
    assert ngs.list_providers() == sorted({*BUILT_IN, "mine", "theirs"})
    assert entry.loads == 0
    assert ngs.get_provider_class("theirs") is Theirs
    assert asked == ["nemo_gym.sandbox_providers"]
    ngs.register_provider("theirs", MemoryProvider)
    assert ngs.get_provider_class("theirs") is MemoryProvider


def test_two_distributions_with_one_name(install: Callable[..., list[str]]):
    install(Entry("theirs", "package-b", MemoryProvider), Entry("theirs", "package-a", MemoryProvider))
    with pytest.raises(
        ValueError, match="Duplicate sandbox provider entry point 'theirs': both package-a and package-b"
    ):
        ngs.list_providers()


def test_one_distribution_seen_twice_is_fine(install: Callable[..., list[str]]):
    install(Entry("theirs", "package", MemoryProvider), Entry("theirs", "package", MemoryProvider))
    assert "theirs" in ngs.list_providers()


def test_a_shadowed_entry_point_is_warned_of_and_not_used(
    install: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
):
    ngs.register_provider("mine", MemoryProvider)
    install(Entry("local", "package-l", MemoryProvider), Entry("mine", "package-m", MemoryProvider))
    assert ngs.list_providers() == sorted({*BUILT_IN, "mine"})
    assert caplog.text.count("shadowed") == 2
    assert "package-l" in caplog.text
    assert ngs.get_provider_class("local") is not MemoryProvider


# ---- configuration


MERGED = {
    "sandbox": {"docker": {"exec": {"concurrency": 4}, "tags": ["a"]}, "default_metadata": {"sandbox-api": "x"}},
    "bare": {"local": None},
    "two": {"docker": {}, "local": {}},
    "none": {"default_metadata": {}},
    "number": 5,
}


def test_a_reference_and_an_inline_block():
    wanted = {"docker": {"exec": {"concurrency": 4}, "tags": ["a"]}}
    by_name = ngs.resolve_provider_config("sandbox", MERGED)
    assert by_name == wanted
    assert ngs.resolve_provider_config(MERGED["sandbox"]) == wanted
    assert ngs.resolve_provider_config("bare", MERGED) == {"local": {}}
    by_name["docker"]["tags"].append("b")
    by_name["docker"]["exec"]["concurrency"] = 5
    assert ngs.resolve_provider_config("sandbox", MERGED) == wanted


def test_omegaconf_is_taken_with_its_interpolations():
    merged = OmegaConf.create(
        {"size": 7, "sandbox": {"docker": {"exec": {"concurrency": "${size}"}}}, "broken": {"local": {"x": "${gone}"}}}
    )
    resolved = ngs.resolve_provider_config("sandbox", merged)
    assert resolved == {"docker": {"exec": {"concurrency": 7}}}
    assert type(resolved["docker"]["exec"]) is dict
    assert ngs.resolve_provider_config(merged.sandbox) == resolved
    with pytest.raises(ValueError, match=r"'broken'.*'sandbox'"):
        ngs.resolve_provider_config("nope", merged)


def test_references_that_lead_nowhere():
    for empty in ("", "  "):
        with pytest.raises(ValueError, match="non-empty string"):
            ngs.resolve_provider_config(empty, MERGED)
    with pytest.raises(ValueError, match=r"'x' is not defined in the merged config.*'bare', 'sandbox'$"):
        ngs.resolve_provider_config("x", MERGED)
    with pytest.raises(ValueError, match="is not defined in the merged config"):
        ngs.resolve_provider_config("x")
    with pytest.raises(ValueError, match="is not defined in the merged config"):
        ngs.resolve_provider_config("number", MERGED)
    for wrong in (5, None, ["sandbox"]):
        with pytest.raises(TypeError, match="must be a name reference"):
            ngs.resolve_provider_config(wrong, MERGED)  # type: ignore[arg-type]
    for block in ("two", "none"):
        with pytest.raises(ValueError, match="exactly one provider key"):
            ngs.resolve_provider_config(block, MERGED)


def test_metadata():
    assert ngs.resolve_provider_metadata("sandbox", MERGED) == {"sandbox-api": "x"}
    assert ngs.resolve_provider_metadata("sandbox", MERGED) is not MERGED["sandbox"]["default_metadata"]
    assert ngs.resolve_provider_metadata("bare", MERGED) == {}
    with pytest.raises(ValueError, match="must be a mapping"):
        ngs.resolve_provider_metadata({"local": {}, "default_metadata": ["x"]})


def test_rewrite_image():
    rules = [{"from": "docker.io/", "to": "mirror/"}, {"from": "docker.io/library/", "to": "never/"}]
    assert rewrite_image("docker.io/library/python:3", rules) == "mirror/library/python:3"
    assert rewrite_image("ghcr.io/x", rules) == "ghcr.io/x"
    assert rewrite_image(None, rules) is None
    assert ngs.rewrite_image is rewrite_image


def test_cpu_cap_env():
    assert cpu_cap_env(None) == {}
    assert len(CPU_CAP_ENV_VARS) == len(set(CPU_CAP_ENV_VARS)) == 19
    assert cpu_cap_env(2.9) == dict.fromkeys(CPU_CAP_ENV_VARS, "2")
    assert set(cpu_cap_env(0.5).values()) == {"1"}


@pytest.mark.usefixtures("install")
def test_listing_imports_no_backend():
    before = set(sys.modules)
    ngs.list_providers()
    assert not {name for name in set(sys.modules) - before if "providers." in name}
