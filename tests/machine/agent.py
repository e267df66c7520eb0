"""Runs in the machine: each line on its serial line is a command of the shell, which runs beside the others.

A request is ``[number, command]``. Answers are ``[number, descriptor, bytes in base64]`` and ``[number, exit code]``.
The first line is the name of this boot. The file imports nothing of this repository.
"""

import base64
import json
import os
import subprocess
import threading
import tty
from collections.abc import Sequence
from pathlib import Path

# As a session of a person has it: not in the control group of the agent.
_SCOPE = ("systemd-run", "--quiet", "--scope", "--collect", "--slice=user.slice", "bash", "-c")


def serve(requests: int, answers: int, shell: Sequence[str]) -> None:
    """Run each command beside the others, and tell what it prints while it prints it, until the requests end."""
    lock = threading.Lock()

    def answer(*words: object) -> None:
        content = (json.dumps(words) + "\n").encode()
        with lock:
            while content:
                content = content[os.write(answers, content) :]

    def run(number: int, command: str) -> None:
        def pass_on(name: str, pipe: int) -> None:
            while content := os.read(pipe, 1 << 15):
                answer(number, name, base64.b64encode(content).decode())

        with subprocess.Popen(
            [*shell, command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            pipes = (("out", process.stdout), ("err", process.stderr))
            threads = [threading.Thread(target=pass_on, args=(name, pipe.fileno())) for name, pipe in pipes if pipe]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        answer(number, process.returncode)

    answer("up", Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with open(requests, "rb", closefd=False) as lines:
        for line in lines:
            threading.Thread(target=run, args=json.loads(line), daemon=True).start()


if __name__ == "__main__":
    serial_line = os.open("/dev/ttyS0", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(serial_line)
    os.environ.update(HOME="/root", LANG="C.UTF-8", PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    serve(serial_line, serial_line, _SCOPE)
