// A crowd of hosts and functions, as a manager and their agents have them: when the topology is first drawn, how many frames a second it moves
// with, what the manager spends on ten open tabs, and whether a tab that is left open grows. Figures are printed and not judged: a machine that tests share
// is no place to measure. That memory does not grow is judged.
import { ask, fail, moves, say, signedIn } from "../lib.mjs";

const tabs = 10;
const growth = 1.25; // of the heap between the first look and the last
const slack = 8 << 20; // bytes; a heap is never quite the same

export default async function () {
  const { name, seconds, looks } = await ask("crowd");
  const page = await signedIn();
  const topology = new URL("/topology", page.url()).href;
  await page.goto(topology);
  say(await moves(page, { name, find: "nf0002" }));

  // What the manager spends: on hosts where functions crash, and on the same with tabs that watch them.
  await ask("crash");
  const spent = async () => {
    const from = await ask("spent");
    await page.waitForTimeout(Math.max(3_000, (1000 * seconds) / 10));
    const to = await ask("spent");
    return (100 * (to.cpu - from.cpu)) / (to.at - from.at);
  };
  await page.goto("about:blank");
  const others = [];
  for (let i = 0; i < tabs; i++) others.push(await page.context().newPage());
  const settle = Math.min(10_000, (1000 * seconds) / 10); // until they have drawn what there is
  const rounds = seconds < 100 ? 1 : 3; // of nobody watching, and ten tabs, in turns
  const alone = [];
  const watched = [];
  for (let i = 0; i < rounds; i++) {
    for (const p of others) await p.goto("about:blank");
    await page.waitForTimeout(settle);
    alone.push(await spent());
    for (const p of others) {
      await p.goto(topology);
      await p.getByRole("application", { name }).waitFor();
    }
    await page.waitForTimeout(settle);
    watched.push(await spent());
  }
  const mean = (x) => x.reduce((a, b) => a + b) / x.length;
  const each = (x) => x.map((n) => n.toFixed(1)).join(", ");
  say(`the manager spends ${mean(alone).toFixed(1)} % of a core with nobody watching (${each(alone)}), ${mean(watched).toFixed(1)} % with ${tabs} tabs open (${each(watched)}): ${(mean(watched) - mean(alone)).toFixed(1)} % for them`);
  for (const p of others.slice(1)) await p.close();

  // One tab stays open while events come.
  const tab = others[0];
  const cdp = await tab.context().newCDPSession(tab);
  const heap = async () => {
    await cdp.send("HeapProfiler.collectGarbage");
    return (await cdp.send("Runtime.getHeapUsage")).usedSize;
  };
  const before = await ask("events");
  const sizes = [];
  for (let i = 0; i <= looks; i++) {
    sizes.push(await heap());
    if (i < looks) await tab.waitForTimeout((1000 * seconds) / looks);
  }
  const after = await ask("events");
  const mb = (n) => (n / (1 << 20)).toFixed(1);
  say(`${((after.told - before.told) / (after.at - before.at)).toFixed(1)} events a second for ${(after.at - before.at).toFixed(0)} s; the heap in MB: ${sizes.map(mb).join(" ")}`);
  const first = Math.max(...sizes.slice(0, 2)); // the first look may come before everything is drawn
  if (sizes.at(-1) > growth * first + slack) fail(`the tab has grown from ${mb(first)} to ${mb(sizes.at(-1))} MB`);
  if (after.told === before.told) fail("no event came: nothing was measured");
  // It has missed nothing: what it shows is what there is.
  await ask("calm");
  await tab.getByRole("application", { name }).waitFor();
  await tab.getByText("live", { exact: true }).first().waitFor();
}
