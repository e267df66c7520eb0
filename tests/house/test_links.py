"""Links in pages lead to a file that is there and a heading that it has. Other people's sites are not asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.house.sources import FENCED, PAGES, ROOT, place

INDEX = ROOT / "docs" / "README.md"
GENERATED_TOGETHER = "runbooks"  # its own README.md lists them, and tests/dashboards holds that against the alerts

CODE = re.compile(r"`[^`\n]*`")
TARGET = re.compile(
    r"\]\(([^()\s]*)(?: \"[^\"]*\")?\)|^\[[^\]]+\]: *(\S+)|<(https?:[^>\s]+)>|(?:href|src)=\"([^\"]*)\"", re.MULTILINE
)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def targets(text: str) -> Iterator[str]:
    """Where the links of a page lead; what stands in code is no link."""
    for found in TARGET.finditer(CODE.sub("``", FENCED.sub("", text))):
        yield next(target for target in found.groups() if target is not None)


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in a link, as GitHub makes it of them."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


@cache
def anchors_of(path: Path) -> set[str]:
    return anchors(path.read_text())


def fault(page: Path, target: str) -> str | None:
    """What is wrong with a link, if anything is."""
    if re.match(r"[a-zA-Z][a-zA-Z+.-]*:", target):
        return None if target.startswith("https://") else f"{target}: neither https nor a file of ours"
    name, hash_, anchor = target.partition("#")
    to = (page.parent / unquote(name)).resolve() if name else page
    if not to.is_relative_to(ROOT) or not to.exists():
        return f"{target}: there is no such file"
    if hash_ and (to.suffix != ".md" or anchor not in anchors_of(to)):
        return f"{target}: there is no such heading"
    return None


def test_every_link_leads_to_an_existing_heading():
    broken = [
        f"{place(page)}: {wrong}"
        for page in PAGES
        for target in targets(page.read_text())
        if (wrong := fault(page, target)) is not None
    ]
    assert not broken, "\n".join(broken)


def test_every_page_of_the_documentation_stands_in_its_index():
    listed = {(INDEX.parent / target.partition("#")[0]).resolve() for target in targets(INDEX.read_text())}
    pages = {page for page in PAGES if page.is_relative_to(INDEX.parent) and page.parent.name != GENERATED_TOGETHER} - {
        INDEX
    }
    assert pages, "there are pages"
    assert sorted(place(page) for page in pages - listed) == []


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        "docs/states.md#no-such-heading",
        "#no-such-heading",
        "../outside.md",
        "http://example.org",
        "docs/images/autoclave-gpu.png#x",
    ],
)
def test_a_link_that_leads_nowhere_is_seen(link):
    [target] = targets(f"before [words over\ntwo lines]({link}) after")
    assert fault(ROOT / "README.md", target) is not None


def test_all_forms_of_links_are_found_except_in_code():
    text = '[a](b.md) ![c](d.png "e")\n[f]: g.md\n<https://h.example> <img src="i.png">\n`[j](k)` \n```\n[l](m)\n```\n'
    assert list(targets(text)) == ["b.md", "d.png", "g.md", "https://h.example", "i.png"]
