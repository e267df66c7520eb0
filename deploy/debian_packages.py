"""Add the Debian packages of this machine to a bill of materials: ``python deploy/debian_packages.py SBOM``.

The build of the image runs it on the base, so that one bill names all that the image holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

STATUS = Path("/var/lib/dpkg/status")
RELEASE = Path("/etc/os-release")


def components(status: str, release: str) -> Iterator[dict[str, str]]:
    """Each installed package, with the name by which scanners look up its faults."""
    about = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    distro = "debian-" + about["VERSION_ID"].strip('"')
    for stanza in status.split("\n\n"):
        lines = (line.partition(": ") for line in stanza.splitlines() if not line.startswith(" "))
        fields = {name: value for name, _, value in lines}
        if not fields.get("Status", "").endswith(" installed"):
            continue  # removed, and only its settings are left
        name, version = fields["Package"], fields["Version"]
        # Debian lists faults by source. A source has a version of its own where that differs: `gcc-12 (12.2.0-14)`.
        source, _, own = fields.get("Source", "").partition(" ")
        upstream = f"{source}@{own.strip('()')}" if own else source
        more = {"arch": fields["Architecture"], "distro": distro, "upstream": upstream}
        qualifiers = "&".join(f"{key}={quote(value, safe='')}" for key, value in more.items() if value)
        purl = f"pkg:deb/debian/{quote(name, safe='')}@{quote(version, safe='')}?{qualifiers}"
        yield {"bom-ref": purl, "name": name, "purl": purl, "type": "library", "version": version}


def main(bill: Path) -> None:
    """Add them. A base without the list of Debian's packages ends the build."""
    content = json.loads(bill.read_text(encoding="utf-8"))
    packages = list(components(STATUS.read_text(encoding="utf-8"), RELEASE.read_text(encoding="utf-8")))
    if not packages:
        sys.exit(f"cannot list Debian's packages: {STATUS} names none")
    content["components"] += sorted(packages, key=lambda component: component["purl"])
    bill.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
