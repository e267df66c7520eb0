"""Runs the commands of a place, such as kubectl and docker, each within a time, and asks for the rights they need."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ground.errors import AutoclaveError, FatalError, Reason

COMMANDS_WITHIN = 120.0  # seconds, such as one that deletes a pod, and waits until it is gone


class ContainerFailed(AutoclaveError):
    """A container, or a command that starts or ends one, did not do its part."""

    def __init__(self, why: str) -> None:
        super().__init__(Reason.INTERNAL, f"cannot go on: {why}")
        self.why = why


def expect_program(program: str) -> None:
    """FatalError if this launcher (docker, kubectl, srun) is not here."""
    if shutil.which(program) is None:
        raise FatalError(
            f"cannot start containers: {program} is not in PATH", "install it, or add its directory to PATH"
        )


def expect_daemon(program: str) -> None:
    """FatalError if docker, or a program that takes the same commands, does not answer this user."""
    if (done := asked([program, "ps", "--quiet"])).returncode:
        raise FatalError(
            f"cannot start containers: {program} does not answer: {_last_line(done)}",
            "start its daemon, or run the command as a user whom it serves",
        )


def run(command: Sequence[str]) -> None:
    """Run a command of the launcher (docker, kubectl, srun); ContainerFailed if it fails."""
    done = asked(command)
    if done.returncode:
        raise _unlike_success(command, done)


def asked(command: Sequence[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """What a command of the launcher answers. ``text``: for its stdin.

    Ctrl-C does not end it, because it may be the command that cleans up.
    """
    try:
        return subprocess.run(
            command,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
            timeout=COMMANDS_WITHIN,
        )
    except subprocess.TimeoutExpired as error:
        raise ContainerFailed(f"`{shlex.join(command)}` did not end within {COMMANDS_WITHIN:g} s") from error


def expect_rights(rights: Mapping[str, Sequence[str]], page: str) -> None:
    """ContainerFailed if no cluster answers, or if the account lacks a right: it might leave a container behind.

    ``rights``: for each one the command that asks for it. ``page``: the page that lists them.
    """
    denied = []
    for right, command in rights.items():
        answer = asked(command)
        if answer.stdout.split()[:1] not in (["yes"], ["no"]):
            kubeconfig = "set KUBECONFIG, or choose another context with `kubectl config use-context`"
            raise ContainerFailed(f"no cluster answers: {_unlike_success(command, answer).why}; {kubeconfig}")
        if answer.returncode:
            denied.append(right)
    if denied:
        why = f"a pod that it makes could stay; {page} has the rights that it needs"
        raise ContainerFailed(f"this account may not {', '.join(denied)}: {why}")


def _unlike_success(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> ContainerFailed:
    return ContainerFailed(f"`{shlex.join(command)}` ended with status {done.returncode}: {_last_line(done)}")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().rpartition("\n")[2] or "it wrote nothing"
