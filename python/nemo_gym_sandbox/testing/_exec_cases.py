"""Commands: their exit codes, their environment, who runs them and where."""

from __future__ import annotations

import asyncio

from nemo_gym_sandbox.testing._box import (
    Box,
    code_is,
    equal,
    expect,
    marker,
    printed,
    quote,
    sandbox_processes,
    short,
    stdout_is,
    told,
)
from nemo_gym_sandbox.testing._case import Group

GROUP = Group("exec")
case = GROUP.case


@case()
async def a_codes_meaning_is_guessed(box: Box) -> None:
    """A command's own exit code is told as it is, whatever others use it for."""
    for code in (0, 1, 2, 124, 125, 126, 127, 130, 137, 143, 255):
        code_is(await box.run(f"exit {code}"), code)


@case(unless="no_signal_codes")
async def death_by_a_signal_has_no_usable_code(box: Box) -> None:
    """It is 128 and the signal's number."""
    for signal, code in {"KILL": 137, "TERM": 143, "SEGV": 139, "INT": 130}.items():
        code_is(await box.run(f"kill -{signal} $$; sleep 5"), code)


@case()
async def a_missing_program_is_a_runtime_failure(box: Box) -> None:
    """It is the shell's 127, and 126 for what cannot be executed."""
    code_is(await box.run("no-such-command-zz"), 127)
    code_is(await box.run("/etc/passwd"), 126)


@case()
async def stderr_text_decides_what_a_failure_is(box: Box) -> None:
    """What a command prints is its own business."""
    for text in (
        "nginx is not running",
        "Error response from daemon: no",
        "No such container: web",
        "command timed out after 1s",
    ):
        result = await box.run(f"echo {quote(text)} >&2; exit 3")
        code_is(result, 3)
        printed(result, "", f"{text}\n")


@case(unless="merged_output")
async def what_is_not_printed_is_none(box: Box) -> None:
    """A channel that was collected is text, also when it is empty."""
    result = await box.run("true")
    code_is(result, 0)
    equal((result.stdout, result.stderr), ("", ""), "the output of true")


@case()
async def a_command_that_begins_with_a_dash_is_an_option(box: Box) -> None:
    """Nothing takes it for its own."""
    for command in ("--help", "-c 'echo taken-as-option'", "--version"):
        result = await box.run(command)
        code_is(result, 127)
        expect("taken-as-option" not in (result.stdout or ""), f"{command} was an option")
        if not box.backend.merged_output:
            equal(result.stdout, told(result, ""), f"what {command} printed")


@case()
async def the_command_is_quoted_again(box: Box) -> None:
    """Every character of it arrives as it is."""
    body = "single ' double \" tick ` dollar $HOME $(id) back \\ \\n slash ☕ tab\tpercent %s star *\n\n  end\n"
    await box.bash(f"cat <<'EOT'\n{body}EOT\n", body)
    await box.bash(f"printf '%s' {quote(body)}", body)
    await box.bash("echo one\necho two # a comment\n\n", "one\ntwo\n")


@case(unless="no_long_commands")
async def a_command_is_limited_to_one_argument(box: Box) -> None:
    """It may be longer than the 128 KiB that Linux takes as one."""
    await box.bash(f": '{'x' * 200_000}'; echo ok", "ok\n")


@case()
async def an_empty_command_hangs(box: Box) -> None:
    """It succeeds."""
    await box.bash("", "")
    await box.bash("  \n", "")


@case()
async def bytes_of_a_value_are_changed_on_the_way(box: Box) -> None:
    """Values of variables arrive as they are."""
    values = {
        "V_LINES": "one\ntwo\n",
        "V_QUOTES": "'\"`",
        "V_DOLLAR": "$HOME $(id)",
        "V_UTF": "☕",
        "V_BLANKS": "  x  ",
        "V_EMPTY": "",
        "V_EQUALS": "a=b=c",
        "V_DASH": "--env",
    }
    for name, value in values.items():
        command = f'printf "<%s>" "${name}"; [ "${{{name}+set}}" = set ]'
        stdout_is(await box.run(command, env={name: value}), f"<{value}>")


@case()
async def a_calls_variable_outlives_the_call(box: Box) -> None:
    """It is there for one command."""
    await box.bash("echo $V_ONCE", "here\n", env={"V_ONCE": "here"})
    await box.bash("echo ${V_ONCE-gone}", "gone\n")


@case()
async def one_value_wins_over_the_other_by_chance(box: Box) -> None:
    """The call's value does."""
    for number in range(20):
        want = f"/bin:/usr/bin:/{number}"
        await box.bash('echo "$PATH"', f"{want}\n", env={"PATH": want})


@case(unless="remote_processes")
async def a_secret_shows_in_the_process_list(box: Box) -> None:
    """Values of variables are on no command line of this machine."""
    secret, mark = f"value-{marker()}", marker()
    async with box.running(f"sleep {mark}; true", env={"V_SECRET": secret}):

        async def runs() -> bool:
            return bool(sandbox_processes(f"sleep\0{mark}"))

        await box.wait("the command runs", runs)
        equal(sandbox_processes(secret), [], "the processes with the value on their command line")
        expect(sandbox_processes(secret, "environ"), "the value is not in the command's environment")


@case()
async def a_command_runs_in_a_directory_that_is_not_the_one_asked_for(box: Box) -> None:
    """Whatever its name is."""
    async with box.scratch() as scratch:
        folder = f"{scratch}/with blank's"
        await box.ok(f"mkdir {quote(folder)}")
        await box.bash("pwd", f"{folder}\n", cwd=folder)


@case()
async def a_missing_directory_is_the_commands_own_failure(box: Box) -> None:
    """It is an error that names the directory, or such a result, and nothing runs."""
    await _refused(box, "/no/such/dir", cwd="/no/such/dir")


@case(unless="no_users")
async def a_users_number_needs_an_entry_in_passwd(box: Box) -> None:
    """Any number will do."""
    await box.bash("id -u", "12345\n", user=12345)
    if not box.backend.no_home:
        await box.bash("cd; echo home=$HOME", "home=/\n", user=12345)
    await box.bash("id -u; id -g", "12345\n6789\n", user="12345:6789")


@case(unless="no_users")
async def another_user_is_ignored(box: Box) -> None:
    """It is that user's command, and the next is the default's."""
    await box.bash("id -u", "65534\n", user="nobody")
    for root in ("root", "0", 0):
        await box.bash("id -u", "0\n", user=root)
    default = await box.ok("id -u")
    await box.bash("id -u", "65534\n", user=65534)
    await box.bash("id -u", default)


@case(unless="no_users")
async def an_unknown_user_becomes_the_default_one(box: Box) -> None:
    """It is an error that names the user, or such a result, and nothing runs."""
    await _refused(box, "no-such-user-zz", user="no-such-user-zz")


@case(only_if="no_users")
async def another_user_is_ignored_where_there_is_only_one(box: Box) -> None:
    """Asking for one is refused, and nothing runs."""
    await _refused(box, "", user="no-such-user-zz")


async def _refused(box: Box, named: str, **options: object) -> None:
    async with box.scratch() as scratch:
        try:
            result = await box.run(f"touch {scratch}/ran", **options)
        except Exception as error:
            said = str(error)
        else:
            late = box.backend.late_users and "user" in options and result.return_code != 0
            expect(result.error_type is not None or late, f"got {short(result)}, want an error")
            said = f"{result.stderr}{result.stdout}"
        expect(named in said, f"{said!r} does not name {named!r}")
        code_is(await box.run(f"test -e {scratch}/ran"), 1)


@case()
async def a_request_that_can_not_be_run_is_run_in_part(box: Box) -> None:
    """What no system takes is refused before anything happens."""
    requests: dict[str, dict[str, object]] = {
        "a NUL in the command": {"command": "echo a\0b"},
        "a bad variable": {"command": "echo", "env": {"A=B": "c"}},
        "a NUL in a value": {"command": "echo", "env": {"A": "b\0"}},
        "a NUL in the directory": {"command": "echo", "cwd": "/\0"},
    }
    for what, request in requests.items():
        options = dict(request)
        try:
            result = await box.run(str(options.pop("command")), **options)
        except (ValueError, TypeError):
            continue
        raise AssertionError(f"{what}: got {short(result)}, want ValueError")


@case()
async def our_descriptors_reach_the_command(box: Box) -> None:
    """It has input, output and errors."""
    await box.bash("ls /proc/$$/fd; true", "0\n1\n2\n")


@case()
async def signals_are_ignored_or_blocked_at_the_start(box: Box) -> None:
    """All are as a new process has them."""
    want = "SigBlk:0000000000000000\nSigIgn:0000000000000000\n"
    await box.bash("grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -d '\\t'", want)
    await box.bash("yes 2>/dev/null | head -n 1", "y\n")


@case()
async def answers_of_many_commands_are_mixed_up(box: Box) -> None:
    """Each call gets its own."""

    async def one(number: int) -> None:
        result = await box.run(f"echo {number}; exit {number % 100}", timeout_s=6 * box.deadline_s)
        code_is(result, number % 100)
        printed(result, f"{number}\n", "")

    async with asyncio.TaskGroup() as group:
        for number in range(box.backend.max_in_flight):
            group.create_task(one(number))
