"""A host's root directory with a shell, and a stand-in for ``nvidia-ctk`` in it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

takes_chroot = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ldd") is None, reason="takes root, and ldd")
BY_UUID = ("GPU-1", "GPU-2", "all")
SAYS = 'while IFS= read -r line; do echo "$line"; done < /output'


def specification(*names, kind="nvidia.com/gpu"):
    """One as nvidia-ctk prints it."""
    devices = [{"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": {}})


class HostRoot:
    """The directory; the stand-in writes its flags into ``asked``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shell = shutil.which("sh")
        assert shell is not None
        listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
        for file in re.findall(r"/\S+", listed):
            self.place(file.lstrip("/"), Path(file).read_bytes())
        self.place("bin/sh", Path(shell).read_bytes())
        self.install(SAYS)
        self.say(specification(*BY_UUID))

    def place(self, name, content):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(content)
        (self.root / name).chmod(0o755)

    def install(self, script, name="usr/bin/nvidia-ctk"):
        self.place(name, f'#!/bin/sh\necho "$*" > /asked\n{script}\n'.encode())

    def say(self, text):
        (self.root / "output").write_text(text + "\n")

    def asked(self):
        """The flags of the last call."""
        return (self.root / "asked").read_text().split()
