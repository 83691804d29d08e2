"""Every manifest in README and docs, against the published schema: manifests.py

The schema is the one that `lockgate schema` prints, which follows from the readers.
"""

import json
import re
import sys
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/manifest.schema.json").read_text())
FENCED = re.compile(r"^( *)```ya?ml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
# Values of the chart, which tests/docs/run_pages.py holds against the chart's own schema.
VALUES = "<!-- file values.yaml -->\n"
# What each of these keys of an excerpt stands for in a whole manifest.
OUTER = {
    "servers": lambda part: {"tenants": {"n": {"auth": {"mode": "keys"}, **part}}},
    "api_keys": lambda part: {"tenants": {"n": {"auth": {"mode": "keys"}, **part}}},
    "quotas": lambda part: {"tenants": {"n": {"auth": {"mode": "keys"}, **part}}},
    "users": lambda part: {"tenants": {"n": {"auth": {"mode": "builtin"}, **part}}},
    "clients": lambda part: {"tenants": {"n": {"auth": {"mode": "builtin"}, **part}}},
    "providers": lambda part: {"tenants": {"n": {"auth": {"mode": "builtin"}, **part}}},
}


def whole(found):
    """The manifest that an excerpt is part of; nothing if it is part of none."""
    if not isinstance(found, dict):
        return None
    if "tenants" in found:
        return found
    if "auth" in found:
        return {"tenants": {"n": found}}
    if set(found) <= set(SCHEMA["$defs"]["server"]["properties"]):
        return {"tenants": {"n": {"auth": {"mode": "keys"}, "servers": {"n": {"command": "x", **found}}}}}
    if all(isinstance(one, dict) and "command" in one for one in found.values()):
        return OUTER["servers"]({"servers": found})
    if all(isinstance(one, dict) and "client_id" in one for one in found.values()):
        return OUTER["providers"]({"providers": found})
    outer = next((key for key in OUTER if key in found), None)
    return OUTER[outer](found) if outer else None


class Texts(yaml.SafeLoader):
    """Points in time stay texts, as the gateway reads them."""


Texts.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def main():
    Draft202012Validator.check_schema(SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    # A schema that takes everything would pass below.
    for wrong in ({"tenants": {"n": {"auth": {"mode": "keys"}, "servers": {"x": {}}}}}, {"tenantz": {}}):
        assert not validator.is_valid(wrong), wrong
    checked, failed = 0, 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        for block in FENCED.finditer(text):
            if text.endswith(VALUES, 0, block.start()):
                continue
            line = text.count("\n", 0, block.start()) + 1
            manifest = whole(yaml.load(block.group(2), Texts))
            place = f"{page.relative_to(ROOT)}:{line}"
            if manifest is None:
                print(f"{place}: no part of a manifest")
                failed += 1
                continue
            checked += 1
            for error in validator.iter_errors(manifest):
                print(f"{place}: {error.json_path}: {error.message}")
                failed += 1
    print(f"{checked} manifests checked, {failed} mistakes")
    return failed == 0 and checked > 4


if __name__ == "__main__":
    sys.exit(not main())
