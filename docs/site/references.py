"""Two pages that are made from their source: every setting, and every key of a manifest.

references.py [--write]: compares the pages with what their sources say, or writes them.
"""

import json
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
SETTINGS = DOCS.parent / "src/config/config.default.toml"
SCHEMA = DOCS / "manifest.schema.json"


def cell(text):
    return " ".join(text.replace("|", "\\|").split())


def marked(text):
    """Prose of the source. What Markdown would take for a tag is code."""
    return cell(text).replace("<", "&lt;").replace("{data_dir}", "`{data_dir}`")


def settings():
    """Reads the defaults: comments stand before the key that they explain."""
    text = SETTINGS.read_text()
    values = tomllib.loads(text)
    lead, sections, section, comment = None, [("", None, [])], "", []
    for line in text.splitlines():
        if line.startswith("#"):
            comment.append(line[1:].strip())
        elif line.startswith("["):
            section = line.strip("[]")
            sections.append((section, " ".join(comment), []))
            comment = []
        elif "=" in line:
            key = line.split("=")[0].strip()
            value = values[section][key] if section else values[key]
            before = sections[-1][2]
            # A comment above several keys explains all of them.
            said = " ".join(comment) if comment else (before[-1][2] if before else "")
            leaves = value.items() if isinstance(value, dict) else [(None, value)]
            for leaf, default in leaves:
                name = ".".join(part for part in (section, key, leaf) if part)
                before.append((name, default, said))
            comment = []
        elif not line.strip() and comment and lead is None:
            lead, comment = comment, []
        elif not line.strip():
            pass
    return lead, sections


def literal(value):
    return f"`{json.dumps(value)}`"


def settings_page():
    _, sections = settings()
    page = [
        "# Every setting",
        "",
        "<!-- Made from src/config/config.default.toml by scripts/docs --write -->",
        "",
        "The settings of the gateway, with their defaults, from",
        "[config.default.toml](../src/config/config.default.toml). [configuration.md](configuration.md#sources) explains",
        "where they may be written: `http.listen` is `listen` below `[http]` in the file, `LOCKGATE_HTTP__LISTEN` in the",
        "environment, and `--set http.listen=…` as a flag. Durations and sizes are texts; `\"0s\"` and `\"\"` mean off.",
        "",
    ]
    for section, said, keys in sections:
        page += [f"## `[{section}]`" if section else "## Before the sections", ""]
        if said:
            page += [marked(said), ""]
        page += ["| key | default | meaning |", "|---|---|---|"]
        previous = None
        for name, default, text in keys:
            shown = "as above" if text == previous and text else marked(text)
            page.append(f"| `{name}` | {literal(default)} | {shown} |")
            previous = text
        page.append("")
    return "\n".join(page).rstrip() + "\n"


class Manifest:
    """The keys of the schema, one table for each object."""

    def __init__(self):
        self.schema = json.loads(SCHEMA.read_text())
        self.done = []

    def resolved(self, schema):
        """A schema with what it refers to, and the name of that."""
        name = None
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            schema = {**self.schema["$defs"][name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema, name

    def kind(self, schema):
        """Its values in a few words."""
        full, name = self.resolved(schema)
        if name in self.named():
            return f"[{name}](#{name})"
        if "const" in full:
            return literal(full["const"])
        if "enum" in full:
            return ", ".join(literal(one) for one in full["enum"])
        for choice in ("oneOf", "anyOf"):
            if choice in full:
                return " or ".join(dict.fromkeys(self.kind(one) for one in full[choice]))
        kinds = full.get("type", "anything")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        said = []
        for kind in kinds:
            if kind == "array":
                items = self.kind(full["items"]) if "items" in full else "anything"
                said.append(f"list of ({items})" if " or " in items or ", " in items else f"list of {items}")
            elif kind == "object" and isinstance(full.get("additionalProperties"), dict):
                said.append(f"by name: {self.kind(full['additionalProperties'])}")
            elif kind == "integer" or kind == "number":
                said.append(self.number(kind, full))
            elif kind == "string":
                said.append({"duration": "duration", "size": "size"}.get(name, "text"))
            else:
                said.append({"object": "object", "boolean": "true or false", "null": "null"}.get(kind, kind))
        return " or ".join(said)

    @staticmethod
    def number(kind, schema):
        least, most = schema.get("minimum"), schema.get("maximum")
        if most is not None and most >= 2**31:
            most = None
        text = "integer" if kind == "integer" else "number"
        if least is not None and most is not None:
            return f"{text}, {least} to {most}"
        return f"{text}, at least {least}" if least else text

    def named(self):
        """The definitions that have a table of their own."""
        return {name for name, one in self.schema["$defs"].items() if "properties" in one or "oneOf" in one and one.get("type") == "object"}

    def rows(self, schema, prefix=""):
        required = schema.get("required", [])
        for key, member in schema["properties"].items():
            full, name = self.resolved(member)
            inner = "properties" in full and name not in self.named()
            default = literal(full["default"]) if "default" in full else ("required" if key in required else "")
            text = marked(full.get("description", ""))
            kind = "object" if inner else self.kind(member)
            yield f"| `{prefix}{key}` | {kind.replace('|', chr(92) + '|')} | {default.replace('|', chr(92) + '|')} | {text} |"
            if inner:
                yield from self.rows(full, f"{prefix}{key}.")
            values = self.resolved(full["additionalProperties"])[0] if isinstance(full.get("additionalProperties"), dict) else {}
            if "properties" in values and self.resolved(full["additionalProperties"])[1] not in self.named():
                yield from self.rows(values, f"{prefix}{key}.NAME.")

    def page(self):
        page = [
            "# Every manifest key",
            "",
            "<!-- Made from docs/manifest.schema.json by scripts/docs --write -->",
            "",
            "The keys of a manifest, from [manifest.schema.json](manifest.schema.json), which editors read too.",
            "[configuration.md](configuration.md#the-manifest) has an example, and where each part is explained. A dot stands",
            "for a nested key: `reply.mode` is `reply: {mode: …}`.",
            "",
            marked(self.schema["description"]),
            "",
            "## manifest",
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
            *self.rows(self.schema),
            "",
        ]
        head = ["| key | value | default | meaning |", "|---|---|---|---|"]
        for name in sorted(self.named()):
            schema = self.schema["$defs"][name]
            page += [f"## {name}", "", marked(schema["description"]), ""]
            for choice in schema.get("oneOf", []):
                page += [marked(choice["description"]), "", *head, *self.rows(choice), ""]
            if "properties" in schema:
                page += [*head, *self.rows(schema), ""]
        return "\n".join(page).rstrip() + "\n"


PAGES = {"configuration-reference.md": settings_page, "manifest-reference.md": lambda: Manifest().page()}


def main():
    stale = []
    for name, made in PAGES.items():
        page, text = DOCS / name, made()
        if "--write" in sys.argv[1:]:
            page.write_text(text)
        elif not page.exists() or page.read_text() != text:
            stale.append(f"docs/{name} is not what its source says; scripts/docs --write makes it")
    if stale:
        sys.exit("\n".join(stale))


if __name__ == "__main__":
    main()
