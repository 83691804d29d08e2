// The official TypeScript client of SDK 2 over Streamable HTTP gets through the whole story, whichever
// revision it settles on: ts2-streamable.mjs URL [--mode legacy|auto|2026-07-28|OLDER] [--backend NAME].
// `auto` offers 2026-07-28 and falls back to older ones; a revision is the only one that is offered.
import assert from 'node:assert/strict';
import { Client, LOG_LEVEL_META_KEY, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { CAPABILITIES, CLIENT, Transcript, fullStory, handlers, main, options, sessionBased } from './common.mjs';

const MODERN = '2026-07-28';
const at = process.argv.indexOf('--mode');
const [, mode = 'auto'] = at < 0 ? [] : process.argv.splice(at, 2);
const NEGOTIATION = {
  legacy: {},
  auto: { versionNegotiation: { mode: 'auto' } },
  [MODERN]: { versionNegotiation: { mode: { pin: MODERN } } },
}[mode] ?? { supportedProtocolVersions: [mode] };
const VERSION = { legacy: '2025-11-25', auto: MODERN }[mode] ?? mode;

/** Takes what the story passes to SDK 1, and sends `meta` with each call. */
class Referee extends Client {
  meta = {};

  callTool({ _meta, ...params }, _schema, settings) {
    return super.callTool({ ...params, _meta: { ..._meta, ...this.meta } }, settings);
  }
}

/** How 2026-07-28 says what older revisions say by requests of their own. */
const stateless = (client) => ({
  ping: () => {},
  setLoggingLevel: (level) => void (client.meta[LOG_LEVEL_META_KEY] = level),
  async subscribe(uri) {
    this.subscription = await client.listen({
      toolsListChanged: true,
      promptsListChanged: true,
      resourcesListChanged: true,
      ...(uri && { resourceSubscriptions: [uri] }),
    });
  },
  unsubscribe() {
    return this.subscription.close();
  },
  // The codes from -32020 to -32099 are the protocol's own (basic, Error Codes).
  failure: -32603,
  told: [{ method: 'notifications/subscriptions/acknowledged', count: 1 }],
});

async function connect(transport) {
  const client = new Referee(CLIENT, { capabilities: CAPABILITIES, ...NEGOTIATION });
  const asked = { sampling: 0, elicitation: 0 };
  for (const [method, handler] of Object.entries(handlers(asked))) client.setRequestHandler(method, handler);
  client.setNotificationHandler('notifications/progress', async () => {}); // tokens are our own
  const transcript = new Transcript();
  client.onerror = (error) => transcript.errors.push(error);
  await client.connect(transport);
  transcript.tap(transport);
  assert.equal(client.getNegotiatedProtocolVersion(), VERSION);
  const dialect = VERSION === MODERN ? stateless(client) : sessionBased(client);
  return { client, transcript, asked, dialect };
}

main(async () => {
  const { url, backend } = options();
  const posts = [];
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    fetch: async (input, init) => {
      const answer = await fetch(input, init);
      if (init?.method === 'POST') {
        const { method } = JSON.parse(init.body);
        const version = new Headers(init.headers).get('mcp-protocol-version');
        posts.push({ method, version, status: answer.status });
      }
      return answer;
    },
  });
  await fullStory(transport, backend, connect);
  // Settled by the first request, and never spoken of again.
  const first = VERSION === MODERN ? 'server/discover' : 'initialize';
  assert.deepEqual({ method: first, status: 200 }, { method: posts[0].method, status: posts[0].status });
  assert.equal(posts.filter(({ method }) => /^(initialize|server\/discover)$/.test(method)).length, 1);
  const spoken = new Set(posts.slice(1).map(({ version }) => version));
  assert.deepEqual([...spoken], [VERSION]);
  console.log(`${posts.length} requests as ${VERSION}`);
});
