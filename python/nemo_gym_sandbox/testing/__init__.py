"""The cases that a sandbox provider has to pass, for the authors of providers.

With pytest, one class per backend; each case becomes a test method::

    from nemo_gym_sandbox.testing import Backend, SandboxConformance

    class TestMine(SandboxConformance):
        backend = Backend("mine", lambda: MyProvider(), SandboxSpec(image="..."), no_pause=True)

Without it, a table of cases and providers: ``python -m nemo_gym_sandbox.testing --provider local``, or :func:`run`.

A case is named after the failure that it keeps away. What a backend does differently is declared in a field of
:class:`Backend`, which leaves out the cases that have no meaning for it; no case asks for a name. All cases go through
:class:`~nemo_gym_sandbox.AsyncSandbox`, as the provider's users do.
"""

from nemo_gym_sandbox.testing._backend import Backend
from nemo_gym_sandbox.testing._case import Case
from nemo_gym_sandbox.testing._mixin import SandboxConformance
from nemo_gym_sandbox.testing._runner import Outcome, cases, run

__all__ = ["Backend", "Case", "Outcome", "SandboxConformance", "cases", "run"]
