"""Code blocks of pages, and the marks in HTML comments that say how a block is run.

A mark stands alone on the line before a fence:

    <!-- terminal NAME until URL -->   a shell of its own, which stays; the URL answers 200 when it is up
    <!-- before: COMMAND -->          needs no fence: what the reader has already
    <!-- before: COMMAND until URL -->  the same, as a terminal of the name `before`
    <!-- check: COMMAND -->           needs no fence: ends with 0; the last block printed the file $SAID
    <!-- stop NAME -->                 needs no fence: Ctrl-C in that shell, whose command ends with 0
    <!-- yours NAME… -->               sets values that are the reader's; the test has its own
    <!-- fails -->                     ends with another exit code than 0
    <!-- not run: REASON -->           is checked for its syntax and its flags alone
    <!-- output -->                    is what the block before it prints; "…" stands for anything
    <!-- file NAME -->                 is written to that file; with ", yours NAME…" behind it as above
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = re.compile(r"^<!-- (terminal|stop|before|check|yours|fails|not run|output|file)\b:? ?(.*?) ?-->$")
FENCE = re.compile(r"^( *)(```+)(\S*)")


@dataclass
class Block:
    page: Path
    line: int
    language: str
    mark: str
    of_mark: str
    text: str

    @property
    def place(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page):
    """The fenced blocks of a page in their order, and the marks that need none."""
    found, mark, fence, body, begin = [], ("", ""), None, [], 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        hit = FENCE.match(line)
        if fence is not None:
            if hit and hit[2] == fence[1] and not hit[3]:
                indent = len(fence[0])
                text = "".join(one[indent:] + "\n" for one in body)
                found.append(Block(page, begin, fence[2], *mark, text))
                fence, mark = None, ("", "")
            else:
                body.append(line)
        elif hit:
            fence, body, begin = hit.groups(), [], number
        elif said := MARK.match(line.strip()):
            if said[1] == "stop":
                found.append(Block(page, number, "", "stop", said[2], ""))
            elif said[1] == "before":
                command, stays, url = said[2].partition(" until ")
                of_mark = ("terminal", f"before until {url}") if stays else ("hidden", "")
                found.append(Block(page, number, "sh", *of_mark, f"{command}\n"))
            elif said[1] == "check":
                found.append(Block(page, number, "sh", "hidden", "", f"{said[2]}\n"))
            else:
                mark = (said[1], said[2])
        elif line.strip():
            if mark[0]:
                raise SystemExit(f"{page}:{number}: a mark without a fence behind it: {mark[0]}")
    return found
