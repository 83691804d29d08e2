"""The documentation site, built and read as a browser would: test_site.py

Run with the Python of docs/site/requirements.txt: links, anchors, navigation, resources, HTML, and the pages that
follow from a source. Messages that pages quote exist in the source.
"""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import html5lib

from pages import ROOT

sys.path.insert(0, str(ROOT / "docs/site"))
import build  # noqa: E402
import references  # noqa: E402

BASE = "https://site.invalid/"
# Attributes by which an element loads something at once.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("embed", "src")}
LOADED |= {("link", "href"), ("object", "data"), ("image", "href"), ("use", "href"), ("form", "action")}
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def local(tag):
    return tag.rsplit("}", 1)[-1] if isinstance(tag, str) else ""


class Html:
    """One page of the site."""

    def __init__(self, name, text):
        self.name = name
        parser = html5lib.HTMLParser(strict=False)
        self.tree = parser.parse(text)
        self.errors = [f"{name}:{line}: {code} {said}" for (line, _), code, said in parser.errors]
        self.elements = [(local(one.tag), one) for one in self.tree.iter()]
        self.ids = [one.get("id") for _, one in self.elements if one.get("id")]

    def links(self):
        for tag, one in self.elements:
            if tag == "a" and one.get("href") is not None:
                yield one.get("href")

    def resources(self):
        for tag, one in self.elements:
            for (of, attribute) in LOADED:
                if tag == of and one.get(attribute):
                    yield one.get(attribute)

    def problems(self):
        yield from self.errors
        twice = {one for one in self.ids if self.ids.count(one) > 1}
        if twice:
            yield f"{self.name}: ids that come twice: {sorted(twice)}"
        html = self.elements[0][1]
        if not html.get("lang"):
            yield f"{self.name}: no language"
        for tag, one in self.elements:
            if tag == "img" and not (one.get("alt") or "").strip():
                yield f"{self.name}: a picture without a text: {one.get('src')}"
        mains = [one for tag, one in self.elements if tag == "main"]
        if len(mains) != 1:
            yield f"{self.name}: {len(mains)} main parts"
            return
        levels = [int(local(one.tag)[1]) for one in mains[0].iter() if re.fullmatch("h[1-6]", local(one.tag))]
        if levels.count(1) != 1 or levels[0] != 1:
            yield f"{self.name}: headings of the first level: {levels.count(1)}"
        for before, after in zip(levels, levels[1:]):
            if after > before + 1:
                yield f"{self.name}: a heading of level {after} below one of level {before}"


class Site:
    def __init__(self, folder):
        self.folder = folder
        self.html = {}
        for file in sorted(folder.rglob("*.html")):
            name = str(file.relative_to(folder))
            # The navigation without scripts, in a frame; it has no page of its own.
            self.html[name] = Html(name, file.read_text())

    def target(self, page, link):
        """The file and the anchor of a link, or None where it leads elsewhere."""
        url = urlsplit(urljoin(BASE + page, link))
        if f"{url.scheme}://{url.netloc}/" != BASE:
            return None
        return unquote(url.path.lstrip("/")) or "index.html", unquote(url.fragment)

    def dead_links(self):
        for name, page in self.html.items():
            if name == "404.html":
                continue
            for link in page.links():
                if not (found := self.target(name, link)):
                    continue
                file, anchor = found
                if not (self.folder / file).is_file():
                    yield f"{name}: {link}"
                elif anchor and file in self.html and anchor not in self.html[file].ids:
                    yield f"{name}: no such anchor: {link}"

    def foreign_resources(self):
        for name, page in self.html.items():
            for resource in page.resources():
                # A plain text of a few bytes within the page is no request.
                if resource.startswith("data:"):
                    continue
                found = self.target(name, resource)
                if found is None or name != "404.html" and not (self.folder / found[0]).is_file():
                    yield f"{name}: {resource}"
        for style in self.folder.rglob("*.css"):
            for url in re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style.read_text()):
                url = url[0] or url[1]
                if urlsplit(url).netloc:
                    yield f"{style.name}: {url}"
                elif not url.startswith("data:") and not (style.parent / url.split("#")[0].split("?")[0]).is_file():
                    yield f"{style.name}: no such file: {url}"
        for picture in self.folder.rglob("*.svg"):
            for url in re.findall(r"(?:href|src)=[\"']([^\"'#][^\"']*)", picture.read_text()):
                yield f"{picture.name}: {url}"

    def navigation(self):
        """The pages that the navigation of the first page leads to."""
        return {found[0] for link in self.html["toc.html"].links() if (found := self.target("toc.html", link))}


scratch = tempfile.TemporaryDirectory(prefix="lockgate-docs-")


def fixture(**pages):
    """A site of these pages."""
    folder = Path(tempfile.mkdtemp(dir=scratch.name))
    for name, body in pages.items():
        text = f'<!DOCTYPE html><html lang="en"><head><title>t</title></head><body><main>{body}</main></body></html>'
        (folder / f"{name}.html").write_text(text)
    return Site(folder)


class TheChecks(unittest.TestCase):
    """They notice what they are for."""

    def test_dead_links_and_anchors(self):
        site = fixture(index='<h1 id="a">A</h1><a href="b.html">b</a><a href="c.html#x">c</a>', c="<h1>C</h1>")
        self.assertEqual(len(list(site.dead_links())), 2)

    def test_foreign_resources(self):
        site = fixture(index='<h1>A</h1><img alt="x" src="https://example.com/x.png"><script src="//cdn.example/x.js"></script>')
        self.assertEqual(len(list(site.foreign_resources())), 2)

    def test_html(self):
        for body in (
            "<h1>A</h1><p><div></p></div>",
            '<h1 id="a">A</h1><p id="a">b</p>',
            '<h1>A</h1><img src="x.png">',
            "<h1>A</h1><h3>B</h3>",
            "<h2>A</h2>",
        ):
            self.assertTrue(list(fixture(index=body).html["index.html"].problems()), body)
        good = fixture(index="<h1>A</h1><p>b</p><h2>c</h2>").html["index.html"]
        self.assertEqual(list(good.problems()), [])


class TheSite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(scratch.name, "site"))
        build.build(cls.folder)
        cls.site = Site(cls.folder)

    def test_links_and_anchors_lead_somewhere(self):
        self.assertEqual(list(self.site.dead_links()), [])

    def test_nothing_is_loaded_from_elsewhere(self):
        self.assertEqual(list(self.site.foreign_resources()), [])

    def test_every_page_is_valid_html(self):
        problems = []
        for name, page in self.site.html.items():
            if name != "toc.html":
                problems += page.problems()
        self.assertEqual(problems, [])

    def test_every_page_is_in_the_navigation_and_in_the_search(self):
        expected = {build.staged_name(page).replace(".md", ".html") for page in build.chapters()}
        self.assertGreater(len(expected), 30)
        self.assertEqual(self.site.navigation(), expected)
        index = next(self.folder.glob("searchindex-*.js")).read_text()
        self.assertEqual([name for name in expected if f"{name}#" not in index and f'"{name}"' not in index], [])


class ThePages(unittest.TestCase):
    def test_pages_that_follow_from_a_source_are_current(self):
        for name, made in references.PAGES.items():
            with self.subTest(name):
                self.assertEqual((references.DOCS / name).read_text(), made(), "scripts/docs --write makes it anew")

    def test_references_are_complete(self):
        """Against another reading of the sources than that of references.py."""
        page = (ROOT / "docs/configuration-reference.md").read_text()
        section, keys = "", 0
        for line in references.SETTINGS.read_text().splitlines():
            if line.startswith("["):
                section = line.strip("[]") + "."
            elif found := re.match(r"(\w+) = ", line):
                keys += 1
                self.assertIn(f"`{section}{found[1]}", page)
        self.assertGreater(keys, 60)
        page = (ROOT / "docs/manifest-reference.md").read_text()
        names = set(re.findall(r'"properties": \{\s*"(\w+)"', references.SCHEMA.read_text()))
        self.assertGreater(len(names), 15)
        self.assertEqual([name for name in names if not re.search(rf"[`.]{name}`", page)], [])

    def test_messages_that_troubleshooting_quotes_exist(self):
        sources = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.rs"))
        # A string that goes on in the next line is one text.
        ours = {re.sub(r"\\\n\s*", "", text) for text in STRING.findall(sources)}
        modules = ROOT / "tests/referees/node_modules"
        places = {
            "TypeScript SDK": modules / "@modelcontextprotocol/sdk/dist/esm",
            "mcp-remote": modules / "mcp-remote/dist",
            "Inspector": modules / "@modelcontextprotocol/inspector/clients",
        }
        theirs = {name: "".join(file.read_text() for file in place.rglob("*.js")) for name, place in places.items()}
        heading, count, wrong = "", 0, []
        for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines():
            if line.startswith("## "):
                heading = line[3:]
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if not line.startswith("|") or cells[0] in ("message", "text", "status", "code", "symptom") or "---" in line:
                continue
            said = cells[1 if heading.startswith("The gateway says") else 0]
            if heading == "The client says":
                for message, client in re.findall(r"`([^`]+)` \((TypeScript SDK|mcp-remote|Inspector)", said):
                    count += 1
                    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
                    if not re.search(".{0,60}".join(parts), theirs[client]):
                        wrong.append(message)
            elif heading != "A server behaves differently than in a terminal":
                for message in re.findall("`([^`]+)`", said):
                    count += 1
                    if not any(message in text for text in ours):
                        wrong.append(message)
        self.assertGreater(count, 50)
        self.assertEqual(wrong, [])

    def test_figures_of_reliability_are_those_that_were_measured(self):
        """scripts/bench writes docs/performance.md, and its figures are repeated in one column."""
        measured = (ROOT / "docs/performance.md").read_text()
        column, count, wrong = None, 0, []
        for line in (ROOT / "docs/reliability.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if not line.startswith("|"):
                column = None
            elif column is None:
                column = cells.index("found") if "found" in cells else -1
            elif column >= 0 and "---" not in line:
                # Not what a link leads to.
                said = re.sub(r"\([^)]*\)", "", cells[column])
                for figure in re.findall(r"\d[\d.,]*", said):
                    count += 1
                    if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,]*\d)", measured):
                        wrong.append(figure)
        self.assertGreater(count, 9)
        self.assertEqual(wrong, [])
        # contract.rs holds the names there.
        contract = (ROOT / "docs/contract.md").read_text()
        named = re.findall(r"`(\w+(?:::\w+)+)`", (ROOT / "docs/reliability.md").read_text())
        self.assertGreater(len(named), 6)
        self.assertEqual([one for one in named if f"`{one}`" not in contract], [])

    def test_reasons_of_errors_exist(self):
        """`data.reason` of the error codes are those of the source."""
        sources = (ROOT / "src/hub/call/error.rs").read_text()
        page = (ROOT / "docs/troubleshooting.md").read_text()
        reasons = set(re.findall(r'"([a-z]+_[a-z]+|timeout)",?\s*\)', sources))
        self.assertIn("timeout", reasons)
        self.assertEqual([one for one in re.findall(r"\(`([a-z_]+)`\)", page) if f'"{one}"' not in sources], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
