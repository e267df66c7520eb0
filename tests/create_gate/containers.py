"""Containers that the real runc creates, with the hooks of a CDI specification."""

import json
import subprocess
from pathlib import Path

from tests.create_gate.programs import CONTAINERD
from tests.patience import WITHIN

SPECIFICATION = "autoclave-gate.json"


class Containers:
    """One bundle for each container."""

    def __init__(self, root: Path, program: Path) -> None:
        self._root = root
        self.cdi = root / "cdi"
        self._program = program
        self.cdi.mkdir()

    def hooks(self, device):
        """What the container runtime runs for this device."""
        specification = json.loads((self.cdi / SPECIFICATION).read_bytes())
        [edits] = [it["containerEdits"] for it in specification["devices"] if it["name"] == device]
        return edits["hooks"]

    def run(self, name, hooks, pod="a", **more):
        """Create a container of this pod and run it. Returns the output, or why it was not created."""
        bundle = self._root / name
        files = bundle / "files"
        files.mkdir(parents=True)
        (files / "program").hardlink_to(self._program)
        annotations = {**CONTAINERD, "io.kubernetes.cri.sandbox-uid": pod, **more}
        without_names = [{key: it[key] for key in it if key != "hookName"} for it in hooks]
        config = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/program"], "env": ["PATH=/"], "cwd": "/"},
            "root": {"path": str(files)},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                # As runtimes do. The bundle may be where no device can be opened, as in systemd's /tmp.
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "annotations": annotations,
            "hooks": {"createRuntime": without_names},
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }
        (bundle / "config.json").write_text(json.dumps(config))
        command = ["runc", "--root", self._root / "state", "run", "--bundle", bundle, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
        return done.stdout if done.returncode == 0 else done.stderr
