"""Isolation: random calls of many tenants at once, each answer held against its canary."""

import json
import secrets
import subprocess

from .common import ECHO, MCPLOAD, Report, api_key, key_hash, serving

TENANTS = 20
PRINCIPALS = 50


def measure(options):
    calls = options.of(1_000_000, 20_000)
    own = 5 if options.quick else 10
    tenants, rows, seed = {}, [], secrets.randbits(32)
    for number in range(TENANTS):
        canary = f"TENANT-{number}-{secrets.token_hex(16)}"
        keys = [api_key() for _ in range(PRINCIPALS)]
        uses = ["own" if at < own else "shared" for at in range(PRINCIPALS)]
        server = {"command": str(ECHO), "env": {"CANARY": canary}, "sandbox": {"profile": "open"}}
        tenants[f"t{number}"] = {
            "auth": {"mode": "keys"},
            "api_keys": {
                f"k{at}": {"hash": key_hash(key), "subject": f"s{at}", "servers": [uses[at]]}
                for at, key in enumerate(keys)
            },
            "servers": {
                "shared": server | {"isolation": "tenant"},
                "own": server | {"isolation": "principal"},
            },
        }
        rows += [(f"t{number}", uses[at], key, canary) for at, key in enumerate(keys)]
    sets = ["sandbox.separation=none", "sandbox.shared_uid=true", "spawn.wait=60s"]
    with serving(options, tenants, *sets) as gateway:
        table = options.folder / "rows"
        lines = [
            f"{gateway.url(tenant, server)}\tAuthorization: Bearer {key}\t{canary}"
            for tenant, server, key, canary in rows
        ]
        table.write_text("\n".join(lines) + "\n")
        command = [str(MCPLOAD), "--json", "--rows", str(table), "--calls", str(calls)]
        command += ["--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        found = json.loads(done.stdout or "{}")
        if "calls" not in found:
            raise RuntimeError(f"mcpload: {done.stdout} {done.stderr} {gateway.log.read_text()}")
        kept = len(json.loads(gateway.operations("/children")))
    if found["errors"]:
        print(found["error_kinds"])
    text = (
        f"{TENANTS} tenants × {PRINCIPALS} principals, each with an API key and a session, over Streamable HTTP on\n"
        f"{kept} children ({TENANTS} shared by a tenant, {own} of each tenant by one principal alone); at\n"
        f"{found['rps']:,.0f} calls a second. Calls of tools, lists, resources, and of others' sessions (each must\n"
        f"be 404). Every byte of every answer is searched for other tenants' canaries. Seed {seed}."
    )
    cells = [
        ["calls", f"{found['calls']:,}", f"{calls:,}", found["calls"] >= calls],
        ["of them with a foreign session", f"{found['stolen_sessions_tried']:,}", "> 0", found["stolen_sessions_tried"] > 0],
        ["foreign bytes", f"{found['foreign_bytes']:,}", "0", found["foreign_bytes"] == 0],
        ["errors", f"{found['errors']:,}", "0", found["errors"] == 0],
    ]
    return Report(text, ["what", "found", "target"], cells)
