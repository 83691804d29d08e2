#!/usr/bin/env python3
"""The workflows of GitHub: valid, with the least rights, and of paths that exist.

Runs with the Python of requirements-workflows.txt, whose actionlint and zizmor it uses.
"""

import pathlib
import re
import subprocess
import sys
import unittest

import yaml

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = pathlib.Path(sys.executable).parent
FILES = sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
# The folders of the checkout that a workflow may name.
FOLDERS = "scripts|deploy|helm|tests|docs|src|fuzz|examples|migrations"


def jobs():
    for file in FILES:
        for name, job in yaml.safe_load(file.read_text())["jobs"].items():
            yield f"{file.name}: {name}", job


class Workflows(unittest.TestCase):
    def run_tool(self, name, *words):
        done = subprocess.run([TOOLS / name, *words], cwd=CHECKOUT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_is_known_here(self):
        self.assertEqual([file.name for file in FILES], ["ci.yml", "docs.yml", "release.yml"])

    def test_actionlint_finds_nothing(self):
        # Without shellcheck, which is not on every machine.
        self.run_tool("actionlint", "-shellcheck=", "-pyflakes=")

    def test_zizmor_finds_nothing(self):
        self.run_tool("zizmor", "--offline", "--no-progress", "--quiet", ".")

    def test_their_scripts_are_bash(self):
        for name, job in jobs():
            for step in job["steps"]:
                script = re.sub(r"\$\{\{.*?\}\}", "x", step.get("run", ""))
                done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def test_what_they_name_exists(self):
        found = 0
        for file in FILES:
            text = "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("#"))
            for path in re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./*-]+)", text):
                found += 1
                self.assertTrue(any(CHECKOUT.glob(path.rstrip("."))), f"{file.name} names {path}")
        self.assertGreater(found, 3)

    def test_the_targets_of_images_are_stages(self):
        stages = set(re.findall(r"(?m)^FROM .* AS ([\w-]+)$", (CHECKOUT / "deploy/Dockerfile").read_text()))
        images = yaml.safe_load((CHECKOUT / ".github/workflows/release.yml").read_text())["jobs"]["images"]
        for row in images["strategy"]["matrix"]["include"]:
            self.assertIn(row["target"], stages)

    def test_each_job_has_only_the_rights_that_it_names(self):
        for file in FILES:
            self.assertEqual(yaml.safe_load(file.read_text())["permissions"], {}, file.name)
        for name, job in jobs():
            self.assertIn("permissions", job, name)
            self.assertLessEqual(job["timeout-minutes"], 180, name)
            if name.startswith("ci.yml"):
                self.assertEqual(job["permissions"], {"contents": "read"}, name)
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout@"):
                    self.assertIs(step["with"]["persist-credentials"], False, name)

    def test_rust_is_that_of_the_package(self):
        rust = re.search(r'(?m)^rust-version = "(.*)"', (CHECKOUT / "Cargo.toml").read_text())[1]
        self.assertIn(f"rust:{rust}-", (CHECKOUT / ".github/workflows/release.yml").read_text())


if __name__ == "__main__":
    unittest.main()
