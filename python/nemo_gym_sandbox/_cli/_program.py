"""What the verbs have in common: how their arguments are read and what becomes of failures."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

from nemo_gym_sandbox._cli._output import PROGRAM, RUNTIME_FAILURE, complain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

LOG_ENV = "NEMO_GYM_SANDBOX_LOG"
"""Names the level from which on the library's log goes to standard error."""

INTERRUPTED = 130


def run_verb(
    name: str,
    description: str,
    declare: Callable[[argparse.ArgumentParser], object],
    run: Callable[[argparse.Namespace], Awaitable[int]],
    arguments: Sequence[str],
) -> int:
    """Read the arguments that ``declare`` adds, run the verb and give the exit status.

    That is the verb's own, 125 after a failure, 130 after an interrupt. Raises SystemExit with 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}", description=description)
    declare(parser)
    chosen = parser.parse_args(arguments)
    level = logging.getLevelNamesMapping().get(os.environ.get(LOG_ENV, "").upper(), logging.ERROR)
    logging.basicConfig(stream=sys.stderr, level=level, format=f"{PROGRAM}: %(levelname)s: %(message)s")

    async def whole() -> int:
        return await run(chosen)

    try:
        code = asyncio.run(whole())
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough. The interpreter would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RUNTIME_FAILURE
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        complain(str(error))
        return RUNTIME_FAILURE
    return code
