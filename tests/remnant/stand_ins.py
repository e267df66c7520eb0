"""Stands in for the programs ``docker``, ``kubectl``, ``srun`` and ``scancel``: their containers are processes.

``GIVEN``: a directory with a file for each container, by its name: its PID. The file ``gpus`` has the UUID that the
next container gets, and the ones after it; the last one is for all others. The file ``banner`` has how many containers
start before one that says a line of its own, ``denied`` what the account of ``kubectl`` may not do, one on each line.
A pipe ``begun`` gets the PID of the command when a container has begun.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NoReturn

GIVEN = Path(os.environ["GIVEN"])


def main(program: str, arguments: list[str]) -> int:
    """What each of them does with these arguments."""
    match [program, *(each for each in arguments if not each.startswith("--namespace"))]:
        case ["docker", "run", *rest]:
            uuid = rest[rest.index("--gpus") + 1].removeprefix("device=")
            return _run(rest[rest.index("--name") + 1], uuid, rest[rest.index("-P") :])
        case ["docker", "ps", *rest]:
            name = rest[-1].removeprefix("name=^").removesuffix("$")
            sys.stdout.write(f"{name}\n" if (GIVEN / name).exists() else "")
            return 0
        case ["docker", "rm", "--force", name]:
            return _end(name)
        case ["kubectl", *rest] if "run" in rest:
            manifest = json.loads(rest[-1].removeprefix("--overrides="))
            [container] = manifest["spec"]["containers"]
            assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
            assert 600 < manifest["spec"]["activeDeadlineSeconds"] < 3600
            return _run(container["name"], _next_gpu(), container["command"][1:], remove="--rm" in rest)
        case ["kubectl", *rest] if "can-i" in rest:
            denied = (GIVEN / "denied").read_text().splitlines() if (GIVEN / "denied").exists() else []
            verb, resource, *part = rest[rest.index("can-i") + 1 :]
            assert "/" not in resource, "a name"
            right = "/".join([f"{verb} {resource}", *(each.removeprefix("--subresource=") for each in part)])
            sys.stdout.write("no - nobody allows it\n" if right in denied else "yes\n")
            return int(right in denied)
        case ["kubectl", *rest] if "delete" in rest:
            return _end(rest[rest.index("pod") + 1])
        case ["srun", *rest]:
            [name] = [each.removeprefix("--job-name=") for each in rest if each.startswith("--job-name=")]
            return _run(name, _next_gpu(), rest[rest.index("-P") :])
        case ["scancel", *rest]:
            return _end(rest[-1].removeprefix("--name="))
    raise SystemExit(f"{program}: unknown: {arguments}")


def _next_gpu() -> str:
    first, *others = (GIVEN / "gpus").read_text().split()
    (GIVEN / "gpus").write_text(" ".join(others or [first]))
    return first


def _run(name: str, uuid: str, command: list[str], *, remove: bool = False) -> NoReturn:
    """The container sees the root directory of the stand-in for a machine. ``remove``: when it has ended."""
    order = json.loads(sys.stdin.readline()) | {"host_root": os.environ["HOST_ROOT"]}
    if (banner := GIVEN / "banner").exists():
        if (left := int(banner.read_text())) == 0:
            sys.stdout.write("== CUDA ==\n")
        banner.write_text(str(left - 1))
        sys.stdout.flush()
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
    container = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, env=variables, text=True)
    (GIVEN / name).write_text(str(container.pid))
    if (GIVEN / "begun").exists():
        (GIVEN / "begun").write_text(str(os.getpid()))
    threading.Thread(target=_pass_on, args=(json.dumps(order), container), daemon=True).start()
    status = container.wait()
    if remove:
        _end(name)
    os._exit(status if status >= 0 else 128 - status)  # it does not wait for the end of its own input


def _pass_on(order: str, container: subprocess.Popen[str]) -> None:
    assert container.stdin is not None
    with suppress(BrokenPipeError):
        for line in chain([order + "\n"], iter(sys.stdin.readline, "")):
            container.stdin.write(line)
            container.stdin.flush()
        container.stdin.close()


def _end(name: str) -> int:
    if not (GIVEN / name).exists():
        return 0
    with suppress(ProcessLookupError):  # the command that has started it ends after it
        os.kill(int((GIVEN / name).read_text()), signal.SIGKILL)
    (GIVEN / name).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).name, sys.argv[2:]))
