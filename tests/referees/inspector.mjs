// The command line of MCP Inspector, as the referees run it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const PROGRAM = fileURLToPath(
  new URL('./node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url),
);

/** Runs it once with this environment: `code`, `out` (stdout) and all that it `said`. */
export function inspect(env, url, ...args) {
  const transport = url.endsWith('/sse') ? 'sse' : 'http';
  const all = [PROGRAM, '--cli', '--server-url', url, '--transport', transport, '--format', 'json', ...args];
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, all, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    let out = '';
    let said = '';
    child.stdout.on('data', (chunk) => void ((out += chunk), (said += chunk)));
    child.stderr.on('data', (chunk) => void (said += chunk));
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, out, said }));
  });
}

/** The result that it printed. */
export function answer({ code, out, said }) {
  assert.equal(code, 0, said);
  const whole = JSON.parse(out);
  return whole.result ?? whole;
}
