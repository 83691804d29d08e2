"""The documentation site: stages the pages of docs/, and has mdBook render them.

build.py OUTPUT [--serve PORT]

Pages stay plain Markdown whose links work on a code host. Three things differ here: docs/README.md is
the first page, pages from the root of the repository join those of docs/, and other files that are
linked (schemas, settings) are copied beside them.
"""

import argparse
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
ROOT = DOCS.parent

# A link whose text is the name of a file, which is a title here.
FILE_NAME = re.compile(r"\[[\w./-]+\.md\]\(([\w-]+\.md)((?:#[^)]*)?)\)")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def chapters():
    """The pages that the navigation names, in its order, as paths in the repository."""
    summary = (DOCS / "SUMMARY.md").read_text()
    return [(DOCS / target).resolve() for _, target, _ in LINK.findall(summary)]


def staged_name(page):
    """The name of a page in the site: flat, so that relative links between pages need no folders."""
    if page == DOCS / "README.md":
        return "index.md"
    if page.parent == DOCS:
        return page.name
    if page == ROOT / "helm/lockgate/README.md":
        return "chart.md"
    return page.name.lower() if page.parent == ROOT else None


class Stage:
    """The folder that mdBook reads."""

    def __init__(self, folder):
        self.source = folder / "src"
        self.source.mkdir()
        self.pages = {page: staged_name(page) for page in chapters()}
        self.wrong = []

    def fill(self):
        names = list(self.pages.values())
        for page, name in self.pages.items():
            if name is None or names.count(name) > 1:
                self.wrong.append(f"SUMMARY.md: {page} has no place of its own")
            elif not page.is_file():
                self.wrong.append(f"SUMMARY.md: no such page: {page}")
            else:
                (self.source / name).write_text(self.with_links(page))
        (self.source / "SUMMARY.md").write_text(self.with_links(DOCS / "SUMMARY.md"))
        for page in sorted(DOCS.glob("*.md")):
            if page not in self.pages and page.name != "SUMMARY.md":
                self.wrong.append(f"{page.name} is not in SUMMARY.md")

    def with_links(self, page):
        """The text of a page with the links of the site. Code is left alone."""
        lines, fence = [], None
        for line in page.read_text().splitlines(keepends=True):
            mark = re.match(r"\s*(```+|~~~+)", line)
            if mark and fence is None:
                fence = mark[1]
            elif mark and mark[1].startswith(fence):
                fence = None
            elif fence is None:
                # Marks for tests and generators are nothing for readers.
                line = LINK.sub(partial(self.link, page), re.sub(r"^\s*<!--.*-->$", "", line))
                line = FILE_NAME.sub(self.titled, line)
            lines.append(line)
        return "".join(lines)

    def titled(self, found):
        name, heading = found.groups()
        page = next(page for page, staged in self.pages.items() if staged == name)
        title = next(line for line in page.read_text().splitlines() if line.startswith("# "))
        return f"[{title[2:]}]({name}{heading})"

    def link(self, page, found):
        before, target, after = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, mark, heading = target.partition("#")
        file = (page.parent / path).resolve()
        if file in self.pages:
            return f"{before}{self.pages[file]}{mark}{heading}{after}"
        if file == ROOT / "README.md":
            return f"{before}index.md{after}"
        if not file.is_file() or ROOT not in file.parents:
            self.wrong.append(f"{page.relative_to(ROOT)}: no such file: {target}")
            return found[0]
        # A folder of their own, because a file may be named like a page.
        inside = file.relative_to(DOCS) if DOCS in file.parents else Path("files", file.relative_to(ROOT))
        copy = self.source / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
        return f"{before}{inside}{after}"


def build(output):
    with tempfile.TemporaryDirectory(prefix="lockgate-docs-") as folder:
        folder = Path(folder)
        stage = Stage(folder)
        stage.fill()
        if stage.wrong:
            sys.exit("\n".join(stage.wrong))
        for name in ("book.toml", "site.css", "site.js"):
            shutil.copyfile(HERE / name, folder / name)
        (folder / "theme").mkdir()
        shutil.copyfile(HERE / "favicon.svg", folder / "theme/favicon.svg")
        mdbook = Path(sys.executable).parent / "mdbook"
        shutil.rmtree(output, ignore_errors=True)
        done = subprocess.run(
            [mdbook, "build", folder, "--dest-dir", output.resolve()],
            capture_output=True,
            text=True,
            env={**os.environ, "MDBOOK_LOG": "warn"},
        )
        # It goes on after warnings, which a strict build does not.
        if done.returncode or done.stderr.strip():
            sys.exit(f"mdbook:\n{done.stdout}{done.stderr}")
    mend(output)


# Parts of mdBook's pages that a screen reader or a keyboard cannot use as they are, and what makes them usable.
MENDED = [
    # A label has neither a state nor the focus: a button has both, and site.js makes it work.
    (
        re.compile(r'<label (id="mdbook-sidebar-toggle" [^>]*?) for="mdbook-sidebar-toggle-anchor"([^>]*>.*?)</label>', re.DOTALL),
        r'<button type="button" \1\2</button>',
        True,
    ),
    # The bar above the text is in no landmark.
    (re.compile('<div (id="mdbook-menu-bar")'), r'<div role="banner" \1', True),
    # What scrolls sideways needs the focus for that.
    (re.compile("<pre><code"), '<pre><code tabindex="0"', False),
    (re.compile('<div class="table-wrapper">'), '<div class="table-wrapper" tabindex="0">', False),
]


def mend(output):
    for page in output.glob("*.html"):
        text = page.read_text()
        for old, new, is_everywhere in MENDED:
            text, count = old.subn(new, text)
            if is_everywhere and not count and page.name != "toc.html":
                sys.exit(f"{page.name}: mdBook no longer has {old.pattern}")
        page.write_text(text)


def serve(output, port):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=output)
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--serve", type=int, metavar="PORT")
    given = parser.parse_args()
    build(given.output)
    if given.serve is not None:
        serve(given.output, given.serve)


if __name__ == "__main__":
    main()
