// The official TypeScript client over Streamable HTTP gets through the whole story.
import { fullStory, main, open, options } from './common.mjs';

main(async () => {
  const { url, backend } = options();
  await fullStory(open('streamable', url), backend);
});
