// The `authorization` mode of the MCP conformance suite, both of its scenarios together, without a
// person: this script registers the public client, and is the browser. oauth-conformance.mjs URL
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Browser } from './browser.mjs';
import { main } from './common.mjs';
import { options, server } from './oauth.mjs';

const SUITE = fileURLToPath(
  new URL('./node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url),
);
// Scenario to the checks that must have succeeded.
const WANTED = {
  'authorization-server-metadata-endpoint': [
    'authorization-server-metadata',
    'authorization-server-metadata-cimd',
  ],
  'authorization-code-grant': ['authorization-code-grant'],
};

main(async () => {
  const given = options();
  const { issuer } = server(given);
  const port = await freePort();
  const out = mkdtempSync(path.join(os.tmpdir(), 'lockgate-authorization-'));
  try {
    const args = ['--url', issuer, '--client-id', await registered(given, port)];
    args.push('--resource', given.url, '--port', String(port), '-o', out);
    const { code, said } = await run([SUITE, 'authorization', ...args]);
    assert.equal(code, 0, said);
    const found = {};
    for (const folder of readdirSync(out)) {
      const checks = JSON.parse(readFileSync(path.join(out, folder, 'checks.json'), 'utf8'));
      const wrong = checks.filter((one) => one.status !== 'SUCCESS');
      assert.deepEqual(wrong, [], said);
      const name = Object.keys(WANTED).find((one) => folder.includes(one));
      assert.ok(name, `a scenario that nobody knows: ${folder}`);
      found[name] = checks.map((one) => one.id);
    }
    assert.deepEqual(found, WANTED, said);
    console.log(`2 scenarios, ${Object.values(found).flat().length} checks, no warning`);
  } finally {
    rmSync(out, { recursive: true });
  }
});

async function registered({ origin, tenant }, port) {
  const issued = await fetch(`${origin}/.well-known/oauth-authorization-server${tenant ? `/t/${tenant}` : ''}`);
  const { registration_endpoint } = await issued.json();
  const body = {
    client_name: 'conformance',
    redirect_uris: [`http://127.0.0.1:${port}/callback`],
    token_endpoint_auth_method: 'none',
  };
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(registration_endpoint, { method: 'POST', headers, body: JSON.stringify(body) });
  assert.equal(answer.status, 201);
  return (await answer.json()).client_id;
}

function freePort() {
  return new Promise((resolve) => {
    const probe = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

/** Runs the suite, and is the browser that it asks for. */
function run(args) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    let asked = false;
    const hear = (chunk) => {
      said += chunk;
      const wanted = said.match(/^(http\S+[?&]response_type=code\S*)$/m);
      if (!wanted || asked) return;
      asked = true;
      new Browser().visit(wanted[1]).catch((error) => {
        child.kill();
        reject(error);
      });
    };
    child.stdout.on('data', hear);
    child.stderr.on('data', hear);
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, said }));
  });
}
