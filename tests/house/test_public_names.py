"""Each name that other programs know stands below one domain, which ``ground/public_names.py`` says."""

import re

from ground import public_names
from tests.house.sources import FILES, HOUSES, ROOT, WRITTEN, place

NAMED = re.compile(
    r"gpu\.(?P<driver>autoclave\.[a-z.]+[a-z])|(?P<key>\bautoclave\.[a-z.]+)/(?:gate|checkpoint|policy|unhealthy)\b"
    r"|(?:tag:|https://)(?P<type>[a-z.]+)(?:,2026)?[:/]receipts/v1"
)


def test_every_public_name_stands_below_the_domain():
    found = {
        (match["driver"] or match["key"] or match["type"], place(path))
        for path in FILES
        if path.suffix in {".json", ".md", ".py", ".tpl", ".txt", ".yaml", ".yml"}
        for match in NAMED.finditer(path.read_text())
    }
    assert len(found) > len(HOUSES)
    assert [name for name in sorted(found) if name[0] != public_names.DOMAIN] == []


def test_the_product_takes_the_domain_from_one_place():
    alone = {ROOT / "ground/public_names.py", ROOT / "docs/receipts/verify.py"}  # the script runs without the product
    places = [path for path in WRITTEN if path.relative_to(ROOT).parts[0] != "tests"]
    assert {path for path in places if public_names.DOMAIN in path.read_text()} == alone


def test_the_label_of_the_image_stands_below_the_domain():
    """Labels of images have their domain the other way round."""
    backwards = ".".join(reversed(public_names.DOMAIN.split(".")))
    assert f"{backwards}.cuda=" in (ROOT / "deploy/Dockerfile").read_text()
