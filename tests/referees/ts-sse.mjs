// The official TypeScript client over HTTP+SSE of 2024-11-05 gets through the whole story.
import { fullStory, main, open, options } from './common.mjs';

main(async () => {
  const { url, backend } = options();
  await fullStory(open('sse', url), backend);
});
