// Two replicas over a Redis of their own, and a balancer without stickiness before them:
//   replicas.mjs LOCKGATE_BINARY REDIS_SERVER
// The first line on stdout is JSON: `url` is where the balancer listens, `control` where it is told
// what to do: POST /kill?who=owner|other kills the replica that owns the session that began last, or the
// other one; POST /start starts again what was killed; GET /sessions says how many have begun.
// All of it ends with SIGTERM, and nothing of it stays.
import { spawn } from 'node:child_process';
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath } from 'node:url';

const [binary, redisServer] = process.argv.slice(2);
const work = mkdtempSync(path.join(tmpdir(), 'lockgate-replicas-'));
const fixture = realpathSync(fileURLToPath(new URL('../fixtures/conformance/server.mjs', import.meta.url)));
const replicas = [{}, {}];
const turns = {};
let sessions = 0;
let owner = 0;
let redis;

const listening = (server) =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)));

const gone = (child) =>
  child.exitCode !== null || child.signalCode !== null
    ? Promise.resolve()
    : new Promise((resolve) => child.once('exit', resolve));

/** Asks until the answer is as wanted. */
async function until(what, asked) {
  for (const end = Date.now() + 20_000; Date.now() < end; ) {
    if (await asked().catch(() => false)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`in vain: ${what}`);
}

async function startRedis() {
  const free = net.createServer();
  const port = await listening(free);
  await new Promise((resolve) => free.close(resolve));
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'];
  redis = spawn(redisServer, [...args, '--dir', work], { stdio: 'ignore' });
  await until('Redis', () => new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1', () => resolve(socket.end() && true));
    socket.on('error', () => resolve(false));
  }));
  return `redis://127.0.0.1:${port}/0`;
}

/** Starts a replica; returns when it is ready to serve. */
async function start(at, settings) {
  const sets = [...settings, `data_dir=${path.join(work, `data-${at}`)}`];
  const args = ['serve', '--apply', path.join(work, 'manifest.json')];
  const child = spawn(binary, [...args, ...sets.flatMap((set) => ['--set', set])], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines = readline.createInterface({ input: child.stdout });
  const bound = await new Promise((resolve, reject) => {
    child.once('exit', (code) => reject(new Error(`replica ${at} ended: ${code}`)));
    lines.on('line', (line) => {
      const said = JSON.parse(line);
      if (said.event === 'listening') resolve(said.http);
    });
  });
  const port = Number(bound.split(':').pop());
  await until(`replica ${at}`, async () => (await fetch(`http://${bound}/readyz`)).status === 200);
  replicas[at] = { child, port };
}

/** Sends a request to the first of `order` that takes connections. A request that was sent is never
 * sent again: an answer that breaks is broken for the client too. */
function forward({ request, body, response }, order) {
  const [at, ...others] = order;
  const { method, url, headers } = request;
  const out = http.request({ host: '127.0.0.1', port: replicas[at].port, method, path: url, headers, agent: false });
  out.on('error', (error) => {
    if (error.code === 'ECONNREFUSED' && others.length > 0) {
      forward({ request, body, response }, others);
    } else {
      response.destroy();
    }
  });
  out.on('response', (answer) => {
    if (answer.headers['mcp-session-id'] && !headers['mcp-session-id']) {
      sessions += 1;
      owner = at;
    }
    response.writeHead(answer.statusCode, answer.rawHeaders);
    response.flushHeaders();
    answer.on('error', () => response.destroy());
    answer.pipe(response);
  });
  response.on('close', () => out.destroy());
  out.end(body);
}

/** Requests of one method alternate: of two calls at once each goes to another replica. */
function balance(request, response) {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    turns[request.method] = (turns[request.method] ?? 0) + 1;
    const first = turns[request.method] % 2;
    forward({ request, body: Buffer.concat(pieces), response }, [first, 1 - first]);
  });
}

async function control(settings, { method, url }) {
  const { pathname, searchParams } = new URL(url, 'http://control');
  switch (`${method} ${pathname}`) {
    case 'POST /kill': {
      const at = searchParams.get('who') === 'owner' ? owner : 1 - owner;
      const { child } = replicas[at];
      child.kill('SIGKILL');
      await gone(child);
      return { killed: at };
    }
    case 'POST /start':
      for (const [at, { child }] of replicas.entries()) {
        if (child.signalCode !== null) await start(at, settings);
      }
      return {};
    case 'GET /sessions':
      return { sessions };
    default:
      throw new Error(`${method} ${url}`);
  }
}

async function finish(code) {
  const all = replicas.map(({ child }) => child).filter(Boolean);
  for (const child of all) child.kill('SIGTERM');
  const late = setTimeout(() => all.forEach((child) => child.kill('SIGKILL')), 8000);
  await Promise.all(all.map(gone));
  clearTimeout(late);
  redis?.kill('SIGKILL');
  rmSync(work, { recursive: true, force: true });
  process.exit(code);
}
process.on('SIGTERM', () => finish(0));
process.on('unhandledRejection', (error) => {
  console.error(error);
  finish(1);
});

const balancer = http.createServer({ keepAliveTimeout: 60_000 }, balance);
balancer.requestTimeout = 0;
const url = `http://127.0.0.1:${await listening(balancer)}`;
const server = { command: process.execPath, args: [fixture], sandbox: { profile: 'open', required: false } };
const servers = { one: server, polling: { ...server, reply: { close_after: '300ms' } } };
const manifest = { version: 1, tenants: { acme: { auth: { mode: 'none' }, servers } } };
writeFileSync(path.join(work, 'manifest.json'), JSON.stringify(manifest));
const settings = [
  `public_url=${url}`,
  `redis.url=${await startRedis()}`,
  `master_key=${Buffer.alloc(32, 'k').toString('base64')}`,
  'http.listen=127.0.0.1:0',
  'ops.listen=',
  'cluster.listen=127.0.0.1:0',
  'drain.delay=0s',
  'drain.timeout=2s',
  'telemetry.log=warn,lockgate::cli=info',
];
for (const at of replicas.keys()) await start(at, settings);
const controller = http.createServer((request, response) => {
  control(settings, request).then(
    (said) => response.end(JSON.stringify(said)),
    (error) => response.writeHead(500).end(String(error)),
  );
});
console.log(JSON.stringify({ url, control: `http://127.0.0.1:${await listening(controller)}` }));
