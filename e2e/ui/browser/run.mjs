// Runs one scenario in Chromium; see lib.mjs for what it prints. The exit code is 1 if the scenario broke.
//   node run.mjs SCENARIO CHROMIUM ADDRESS
import { browser, fail, say } from "./lib.mjs";

const scenario = process.argv[2];

let code = 0;
try {
  await (await import(`./scenarios/${scenario}.mjs`)).default();
} catch (e) {
  fail(`${scenario}: ${e.stack ?? e}`);
  const pages = browser.contexts().flatMap((c) => c.pages());
  for (const p of pages) say(`${p.url()}: ${(await p.innerText("body").catch(() => "")).slice(0, 2000)}`);
  code = 1;
}
await browser.close();
process.exit(code);
