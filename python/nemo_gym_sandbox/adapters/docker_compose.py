"""Docker Compose projects as groups of sandboxes; not in this version."""

raise ModuleNotFoundError(
    "This version of nemo_gym_sandbox has no Docker Compose adapter (AsyncSandboxCompose); "
    "a sandbox beside others can be had with SandboxSpec.sidecars",
    name=__name__,
)
