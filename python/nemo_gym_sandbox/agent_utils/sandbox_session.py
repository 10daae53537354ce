"""Supervised activations of a harness; not in this version."""

raise ModuleNotFoundError(
    "This version of nemo_gym_sandbox has no sandbox sessions (SandboxSession, SandboxCommand); "
    "AsyncSandbox runs, stops and reads back what a harness needs",
    name=__name__,
)
