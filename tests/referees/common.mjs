// What the TypeScript referees share: the table of backends, a client that keeps the whole
// transcript as it came over the wire, a TCP proxy that counts, cuts and refuses, and checks.
import assert from 'node:assert/strict';
import net from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ProgressNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

const WATCHED = 'test://watched-resource';
const LISTS = ['tools', 'prompts', 'resources'].map((list) => `notifications/${list}/list_changed`);
const LOG_LINES = ['started', 'processing data', 'completed'].map((l) => `Tool execution ${l}`);
const DOCUMENT = 'demo://resource/dynamic/text/1';

// Per backend: the call to make and what must come of it. `messages` is what the call makes the
// server say beside its answer, in order: [method, the member of params to look at, its values].
export const BACKENDS = {
  fixture: {
    tools: 39,
    echo: { name: 'test_simple_text', arguments: {}, answer: /^This is a simple text response/ },
    slow: (steps, ms) => ({ name: 'slow', arguments: { steps, ms }, answer: /^run \d+: \d+ steps$/ }),
    log: { name: 'test_tool_with_logging', arguments: {}, lines: LOG_LINES },
    sample: { name: 'test_sampling', arguments: { prompt: 'hello' }, answer: /^LLM response: sampled$/ },
    elicit: {
      name: 'test_elicitation',
      arguments: { message: 'who?' },
      answer: /action=accept.*"username":"ada"/,
    },
    fail: { name: 'fail', arguments: {}, code: -32050, data: { why: 'asked to' } },
    read: { uri: 'test://static-text', text: /static text resource/ },
    prompt: {
      name: 'test_prompt_with_arguments',
      arguments: { arg1: 'paris', arg2: 'b' },
      text: /arg1='paris', arg2='b'/,
      complete: { name: 'arg1', value: 'par', values: ['paris', 'park', 'party'] },
    },
    subscribe: WATCHED,
    unsolicited: [
      { name: 'touch', arguments: { uri: WATCHED }, methods: ['notifications/resources/updated'] },
      { name: 'announce', arguments: {}, methods: LISTS },
    ],
  },
  everything: {
    tools: 10, // at least: some appear only for what the client can do
    atLeast: true,
    echo: { name: 'echo', arguments: { message: 'hi' }, answer: /^Echo: hi$/ },
    slow: (steps, ms) => ({
      name: 'trigger-long-running-operation',
      arguments: { steps, duration: (steps * ms) / 1000 },
      answer: /^Long running operation completed/,
    }),
    sample: {
      name: 'trigger-sampling-request',
      arguments: { prompt: 'hello' },
      answer: /"text": "sampled"/,
    },
    elicit: { name: 'trigger-elicitation-request', arguments: {}, answer: /accept|provided/i },
    read: { uri: DOCUMENT, text: /Resource 1/ },
    subscribe: DOCUMENT,
    // Toggling sends at once and then every 5 s: the referees toggle it off again sooner.
    unsolicited: [
      {
        name: 'toggle-subscriber-updates',
        arguments: {},
        methods: ['notifications/resources/updated'],
        undo: true,
      },
    ],
    chatty: true, // logs about subscriptions and changes its lists at the start by itself
  },
  python: {
    tools: 7,
    echo: { name: 'echo', arguments: { message: 'hi' }, answer: /^Echo: hi$/ },
    slow: (steps, ms) => ({ name: 'slow', arguments: { steps, ms }, answer: /^run \d+: \d+ steps$/ }),
    log: { name: 'log', arguments: {}, lines: LOG_LINES },
    sample: { name: 'sample', arguments: { prompt: 'hello' }, answer: /^LLM response: sampled$/ },
    elicit: {
      name: 'elicit',
      arguments: { message: 'who?' },
      answer: /action=accept.*"username":"ada"/,
    },
    fail: { name: 'fail', arguments: {}, code: -32050, data: { why: 'asked to' } },
    read: { uri: WATCHED, text: /Watched resource content/ },
    unsolicited: [{ name: 'announce', arguments: {}, methods: LISTS }],
  },
};

/** For clients that are to come back soon and often. */
export const RECONNECT = {
  initialReconnectionDelay: 200,
  maxReconnectionDelay: 400,
  reconnectionDelayGrowFactor: 1.2,
  maxRetries: 40,
};

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits for a condition; says what it waited for when it does not come. */
export async function until(what, condition, ms = 20_000) {
  const end = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`waited ${ms} ms in vain: ${what}`);
    await sleep(20);
  }
}

/** `SCRIPT URL [--backend NAME]`; a URL may be `stdio:COMMAND ARG…` to run a server bare. */
export function options() {
  const args = process.argv.slice(2);
  const at = args.indexOf('--backend');
  const name = at < 0 ? 'fixture' : args.splice(at, 2)[1];
  if (args.length !== 1 || !BACKENDS[name]) {
    console.error(`usage: SCRIPT URL [--backend ${Object.keys(BACKENDS).join('|')}]`);
    process.exit(2);
  }
  return { url: args[0], backend: BACKENDS[name], name };
}

/** Runs the script's story; any failure, also one nobody awaited, ends it with 1. */
export function main(story) {
  process.on('unhandledRejection', (error) => {
    console.error(error);
    process.exit(1);
  });
  story().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

/** Each message that a transport delivers, before the SDK looks at it. */
export class Transcript {
  constructor() {
    this.messages = [];
    this.errors = [];
  }

  tap(transport) {
    const deliver = transport.onmessage;
    transport.onmessage = (message, extra) => {
      this.messages.push(message);
      deliver?.call(transport, message, extra);
    };
  }

  notifications(method) {
    return this.messages.filter((one) => one.method === method && one.id === undefined);
  }

  progress(token) {
    return this.notifications('notifications/progress')
      .filter((one) => one.params.progressToken === token)
      .map((one) => one.params.progress);
  }

  /** Nothing answered twice, no request of the server seen twice. */
  checkOnce() {
    const answers = this.messages.filter((one) => one.method === undefined).map((one) => one.id);
    assert.equal(new Set(answers).size, answers.length, `an answer came twice: ${answers}`);
    const asks = this.messages.filter((one) => one.method && one.id !== undefined);
    const ids = asks.map((one) => one.id);
    assert.equal(new Set(ids).size, ids.length, `a request of the server came twice: ${ids}`);
  }
}

export function open(kind, url, settings = {}) {
  if (url.startsWith('stdio:')) {
    const [command, ...args] = url.slice('stdio:'.length).split(' ');
    return new StdioClientTransport({ command, args, stderr: 'ignore' });
  }
  return kind === 'sse'
    ? new SSEClientTransport(new URL(url), settings)
    : new StreamableHTTPClientTransport(new URL(url), settings);
}

export const CLIENT = { name: 'lockgate-referee', version: '1.0.0' };
export const CAPABILITIES = { sampling: {}, elicitation: {}, roots: { listChanged: true } };

/** Handlers by method that sample `sampled`, answer as ada and have one root. */
export function handlers(asked) {
  return {
    'sampling/createMessage': async () => {
      asked.sampling += 1;
      return { role: 'assistant', model: 'none', content: { type: 'text', text: 'sampled' } };
    },
    'elicitation/create': async ({ params }) => {
      asked.elicitation += 1;
      const wanted = Object.keys(params.requestedSchema?.properties ?? {});
      const known = { username: 'ada', email: 'ada@example.org', name: 'Ada', check: true };
      const content = Object.fromEntries(wanted.filter((k) => k in known).map((k) => [k, known[k]]));
      return { action: 'accept', content };
    },
    'roots/list': async () => ({ roots: [{ uri: 'file:///srv/referee', name: 'referee' }] }),
  };
}

/** How revisions before 2026-07-28 say what that one says in another way, or no longer. */
export const sessionBased = (client) => ({
  ping: () => client.ping(),
  setLoggingLevel: (level) => client.setLoggingLevel(level),
  subscribe: (uri) => uri && client.subscribeResource({ uri }),
  unsubscribe: (uri) => uri && client.unsubscribeResource({ uri }),
});

/** A connected client of SDK 1 that answers by `handlers` and keeps all that it is told. */
export async function connect(transport) {
  const client = new Client(CLIENT, { capabilities: CAPABILITIES });
  const asked = { sampling: 0, elicitation: 0 };
  const answers = handlers(asked);
  client.setRequestHandler(CreateMessageRequestSchema, answers['sampling/createMessage']);
  client.setRequestHandler(ElicitRequestSchema, answers['elicitation/create']);
  client.setRequestHandler(ListRootsRequestSchema, answers['roots/list']);
  client.setNotificationHandler(ProgressNotificationSchema, async () => {}); // tokens are our own
  const transcript = new Transcript();
  client.onerror = (error) => transcript.errors.push(error);
  const connecting = client.connect(transport);
  transcript.tap(transport); // connect() has set onmessage before its first await
  await connecting;
  return { client, transcript, asked, dialect: sessionBased(client) };
}

let tokens = 0;
/** A call with a progress token of our own: the SDK's own drops what overtakes the answer. */
export async function call(client, { name, arguments: args }, settings = {}) {
  const token = `token-${++tokens}`;
  const params = { name, arguments: args, _meta: { progressToken: token } };
  const result = await client.callTool(params, undefined, settings);
  return { result, token };
}

export const textOf = (result) => result.content.map((one) => one.text ?? '').join('\n');

export const steps = (count) => Array.from({ length: count }, (_, index) => index + 1);

/** The story that every client and every transport must get through, whole. */
export async function fullStory(transport, backend, connecting = connect) {
  const { client, transcript, asked, dialect } = await connecting(transport);
  await sleep(300); // the listener of a bare SDK server keeps nothing for who is late

  const { tools } = await client.listTools();
  if (backend.atLeast) assert.ok(tools.length >= backend.tools, `${tools.length} tools`);
  else assert.equal(tools.length, backend.tools);
  await dialect.ping();

  const echo = await call(client, backend.echo);
  assert.match(textOf(echo.result), backend.echo.answer);

  const slow = backend.slow(5, 100);
  const first = await call(client, slow);
  assert.match(textOf(first.result), slow.answer);
  await until('progress', () => transcript.progress(first.token).length >= 5);

  const both = await Promise.all([call(client, slow), call(client, slow)]);
  for (const { result } of both) assert.match(textOf(result), slow.answer);

  const sampled = await call(client, backend.sample);
  assert.match(textOf(sampled.result), backend.sample.answer);
  const elicited = await call(client, backend.elicit);
  assert.match(textOf(elicited.result), backend.elicit.answer);

  const { resources } = await client.listResources();
  assert.ok(resources.length > 0);
  const { contents } = await client.readResource({ uri: backend.read.uri });
  assert.match(contents[0].text, backend.read.text);
  await promptStory(client, backend);

  if (backend.fail) {
    const { code, data } = backend.fail;
    await assert.rejects(call(client, backend.fail), (error) => {
      assert.equal(error.code, dialect.failure ?? code);
      assert.deepEqual(error.data, data);
      return true;
    });
  }
  await logStory(client, transcript, backend, dialect);
  const expected = await unsolicitedStory(client, transcript, backend, dialect);

  await sleep(1000); // what comes twice, comes late
  for (const { token } of [first, ...both]) assert.deepEqual(transcript.progress(token), steps(5));
  for (const { method, count } of expected) {
    assert.equal(transcript.notifications(method).length, count, method);
  }
  assert.deepEqual(asked, { sampling: 1, elicitation: 1 });
  const own = [...expected, ...(dialect.told ?? [])];
  if (!backend.chatty) checkNothingElse(transcript, backend, own);
  await cancelStory(client, transcript, backend);
  transcript.checkOnce();
  assert.deepEqual(transcript.errors, []);
  if (transport.terminateSession) await transport.terminateSession();
  await client.close();
}

async function promptStory(client, { prompt }) {
  if (!prompt) return;
  const { name, arguments: args, text, complete } = prompt;
  assert.ok((await client.listPrompts()).prompts.some((one) => one.name === name));
  const { messages } = await client.getPrompt({ name, arguments: args });
  assert.match(messages[0].content.text, text);
  const ref = { type: 'ref/prompt', name };
  const { completion } = await client.complete({
    ref,
    argument: { name: complete.name, value: complete.value },
  });
  assert.deepEqual(completion.values, complete.values);
}

/** A cancelled call is neither answered nor in the way of the next one. */
async function cancelStory(client, transcript, backend) {
  const cancel = new AbortController();
  const reported = () => transcript.notifications('notifications/progress').length;
  const before = reported();
  const rejected = assert.rejects(call(client, backend.slow(100, 100), { signal: cancel.signal }));
  await until('two steps', () => reported() >= before + 2);
  cancel.abort('enough');
  await rejected;
  const echo = await call(client, backend.echo);
  assert.match(textOf(echo.result), backend.echo.answer);
  // What was under way may still come; the call itself would go on for ten seconds.
  for (let tries = 8, seen; seen !== reported(); tries--) {
    assert.ok(tries > 0, 'a cancelled call reports on');
    seen = reported();
    await sleep(500);
  }
}

async function logStory(client, transcript, backend, dialect) {
  if (!backend.log) return;
  if (client.getServerCapabilities().logging) await dialect.setLoggingLevel('info');
  await call(client, backend.log);
  const lines = () => transcript.notifications('notifications/message').map((m) => m.params.data);
  await until('log lines', () => lines().length >= backend.log.lines.length);
  assert.deepEqual(lines(), backend.log.lines);
}

async function unsolicitedStory(client, transcript, backend, dialect) {
  await dialect.subscribe(backend.subscribe);
  const expected = [];
  for (const one of backend.unsolicited) {
    const before = one.methods.map((method) => transcript.notifications(method).length);
    await call(client, one);
    for (const [index, method] of one.methods.entries()) {
      const count = before[index] + 1;
      await until(method, () => transcript.notifications(method).length >= count);
      expected.push({ method, count });
    }
    if (one.undo) await call(client, one);
  }
  await dialect.unsubscribe(backend.subscribe);
  const silent = backend.unsolicited.find((one) => one.name === 'touch');
  if (silent) await call(client, silent); // nobody is subscribed any more: must say nothing
  return expected;
}

/** Every notification of the transcript is one that the story asked for. */
function checkNothingElse(transcript, backend, expected) {
  const allowed = new Map(expected.map(({ method, count }) => [method, count]));
  allowed.set('notifications/message', backend.log?.lines.length ?? 0);
  const seen = new Map();
  for (const { method, id } of transcript.messages) {
    if (!method || id !== undefined || method === 'notifications/progress') continue;
    seen.set(method, (seen.get(method) ?? 0) + 1);
  }
  for (const [method, count] of seen) assert.equal(count, allowed.get(method) ?? 0, method);
  const failures = backend.fail ? 1 : 0; // `fail` reports once before it fails
  const all = transcript.notifications('notifications/progress').length;
  assert.equal(all, 15 + failures, 'progress notifications in all');
}

/**
 * A TCP proxy in front of `url`. `gets` counts GET requests, `versions` has the revisions that requests
 * named. After `cutAfterCall()` the connection
 * that carries the next tools/call is cut behind the first message of its answer; `refuse` turns
 * new connections away; `cutAll()` cuts what is open.
 */
export async function proxy(url) {
  const target = new URL(url);
  const state = { gets: 0, cuts: 0, refuse: false, armed: false, sockets: new Set(), versions: new Set() };
  const server = net.createServer((near) => {
    if (state.refuse) return near.destroy();
    const far = net.connect(Number(target.port), target.hostname);
    const pair = { near, far, watched: false, tail: '' };
    state.sockets.add(pair);
    const end = () => {
      near.destroy();
      far.destroy();
      state.sockets.delete(pair);
    };
    for (const socket of [near, far]) socket.on('error', end).on('close', end);
    near.on('data', (chunk) => {
      const said = chunk.toString('latin1');
      state.gets += (said.match(/^GET \S+ HTTP\/1\.1\r\n/gm) ?? []).length;
      for (const [, version] of said.matchAll(/^mcp-protocol-version: (\S+)\r$/gim)) state.versions.add(version);
      if (state.armed && said.includes('"tools/call"')) {
        state.armed = false;
        pair.watched = true;
      }
      // The gateway compares Host exactly: name it, not this proxy.
      far.write(Buffer.from(said.replace(/^(host: )[^\r\n]+/gim, `$1${target.host}`), 'latin1'));
    });
    far.on('data', (chunk) => {
      near.write(chunk);
      if (!pair.watched) return;
      pair.tail += chunk.toString('latin1');
      if (/data: ?\{[^\n]*\}\r?\n\r?\n/.test(pair.tail)) {
        state.cuts += 1;
        pair.watched = false;
        setTimeout(end, 20); // what was written reaches the client first
      }
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const through = new URL(url);
  through.port = server.address().port;
  return {
    state,
    url: through.href,
    cutAfterCall: () => void (state.armed = true),
    cutAll: () => {
      for (const { near } of [...state.sockets]) near.destroy();
    },
    close: () => server.close(),
  };
}
