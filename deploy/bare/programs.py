"""The programs of the demo: where they are, and what to install if they are missing."""

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockgate"
PROVIDER = ROOT / "tests/fixtures/issuer"


class Failed(Exception):
    """What the user has to know, in place of a traceback."""


@dataclass
class Programs:
    """Each by its path; `postgres` is the folder of PostgreSQL's programs."""

    postgres: Path
    valkey: Path
    haproxy: Path
    prometheus: Path
    node: Path


def find():
    """All programs, or the command that installs the missing ones."""
    missing = []

    def need(package, *candidates):
        # Debian has the programs of servers in sbin, which is not in everybody's PATH.
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        found = next(filter(None, (shutil.which(one, path=path) for one in candidates if one)), None)
        if not found:
            missing.append(package)
        return Path(found or "-")

    postgres = need("postgresql", *(f"{folder}/postgres" for folder in postgres_folders())).parent
    valkey = need("redis-server", os.environ.get("VALKEY_SERVER"), "valkey-server", os.environ.get("REDIS_SERVER"), "redis-server")
    programs = Programs(postgres, valkey, need("haproxy", "haproxy"), need("prometheus", "prometheus"), need("nodejs", "node"))
    if not programs.node.is_file() or not shutil.which("npm"):
        missing += [name for name in ("nodejs", "npm") if name not in missing]
    if missing:
        # Their packages start servers of their own, which the demo neither needs nor disturbs.
        raise Failed(f"missing: {', '.join(missing)}; on Debian and Ubuntu:\n  sudo apt-get install {' '.join(missing)}")
    version = subprocess.run([programs.node, "--version"], capture_output=True, text=True).stdout
    if int(re.match(r"v(\d+)", version)[1]) < 20:
        raise Failed(f"Node is {version.strip()}; the identity provider needs 20 or later, the MCP Inspector 22")
    return programs


def postgres_folders():
    """Where PostgreSQL's programs may be; Debian keeps those of each version out of PATH."""
    named = [os.environ["POSTGRES_BIN"]] if "POSTGRES_BIN" in os.environ else []
    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: -int(path.split("/")[4].split(".")[0]))
    return [*named, *debian, *os.environ.get("PATH", "").split(os.pathsep)]


def build(say):
    """The release binary of this checkout, which is built if it is not up to date."""
    if not shutil.which("cargo"):
        raise Failed("no cargo: install Rust (CONTRIBUTING.md, Prerequisites), or name a binary with --binary")
    say("build", "cargo build --locked --release; minutes the first time")
    if subprocess.run(["cargo", "build", "--locked", "--release", "--bin", "lockgate"], cwd=ROOT).returncode:
        raise Failed("the build failed")
    words = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Path(re.search(r'"target_directory":"([^"]+)"', said)[1], "release", "lockgate")


def install_provider(say):
    """The npm packages of the identity provider, where scripts/test keeps them too."""
    names = ("package.json", "package-lock.json", ".npmrc")
    key = hashlib.sha256(b"".join((PROVIDER / name).read_bytes() for name in names)).hexdigest()[:16]
    place = CACHE / "npm" / key
    if not (place / ".complete").exists():
        say("npm ci", f"packages of the identity provider, into {place}")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for name in names:
            shutil.copy(PROVIDER / name, place)
        words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if subprocess.run(words, cwd=place, stdout=sys.stderr).returncode:
            raise Failed("npm ci failed: the identity provider needs its packages")
        (place / ".complete").touch()
    link = PROVIDER / "node_modules"
    if link.is_symlink():
        if link.resolve() == (place / "node_modules").resolve():
            return
        link.unlink()
    elif link.exists():
        # An npm ci by hand.
        return
    link.symlink_to(place / "node_modules")
