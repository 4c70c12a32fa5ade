// What scenarios share: the browser, pages that are signed in, and the conversation with the test. Lines of JSON go to standard output: {"ask": NAME, ...}
// waits for a line of JSON as the answer, {"say": TEXT} is a note, {"fail": TEXT} a finding.
import { chromium } from "playwright-core";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const [, executablePath, address] = process.argv.slice(2);
const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const write = (o) => process.stdout.write(JSON.stringify(o) + "\n");

export const say = (text) => write({ say: text });
export const fail = (text) => write({ fail: text });

/** Lets the test do something outside of the browser, and gives its answer. One at a time. */
let turn = Promise.resolve();
export const ask = (what, more = {}) => (turn = turn.then(async () => {
  write({ ask: what, ...more });
  const { value } = await answers.next();
  return JSON.parse(value);
}));

export const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

/** A page that is signed in by a link, as its user would. What its console says and which requests fail is a finding. */
export async function signedIn(options = {}) {
  const context = await browser.newContext({ reducedMotion: "reduce", viewport: { width: 1440, height: 900 }, locale: "en-GB", timezoneId: "UTC", ...options });
  context.setDefaultTimeout(20_000);
  const page = await context.newPage();
  page.strict = true; // findings count
  const where = () => `${page.url().replace(address, "")} (${options.colorScheme ?? "light"}, ${page.viewportSize()?.width} px)`;
  let within = false;
  const asks = (url) => !within && url === `${address}v1/session`; // a link asks first whether somebody is signed in
  page.on("console", (m) => page.strict && ["error", "warning"].includes(m.type()) && !asks(m.location().url) && fail(`${where()}: the console says: ${m.text()}`));
  page.on("pageerror", (e) => fail(`${where()}: ${e}`));
  page.on("requestfailed", (r) => page.strict && r.failure()?.errorText !== "net::ERR_ABORTED" && fail(`${where()}: ${r.method()} ${r.url()}: ${r.failure()?.errorText}`));
  page.on("response", (r) => page.strict && r.status() >= 400 && !(r.status() === 401 && asks(r.url())) && fail(`${where()}: ${r.request().method()} ${r.url()}: ${r.status()}`));
  page.on("request", (r) => r.url().startsWith(address) || /^(data|blob):/.test(r.url()) || fail(`${where()}: a request leaves: ${r.url()}`));
  await page.goto(await ask("link"));
  await page.waitForSelector(".frame h1");
  within = true;
  return page;
}

/** Opens a page of the UI as a click in it would, without loading it anew. */
export async function open(page, path, wait = "main h1") {
  await page.evaluate((to) => {
    history.pushState({}, "", to);
    dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  }, path);
  await page.waitForSelector(`main[data-path="${path.split("?")[0]}"]`); // until then it is the page before
  await page.waitForSelector(wait);
  await settled(page);
}

/** Nothing is loading, and what was asked of React is drawn. A page whose program is being loaded has no heading yet. */
export async function settled(page) {
  await page.waitForFunction(() => document.querySelector("main h1") && !document.querySelector("main .empty[role=status]"));
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** What axe-core finds, and whether the page is wider than the window. */
export async function examine(page, what) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  for (const v of found.violations) fail(`${what}: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")}`);
  const wide = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  if (wide[0] > wide[1]) fail(`${what}: ${wide[0]} px wide in a window of ${wide[1]}`);
}

/** How soon the topology on a page was drawn first, and how many frames a second it moves with; then a node is found by its name, and all hosts are folded and unfolded. */
export async function moves(page, { name, find }) {
  await page.waitForFunction(() => performance.getEntriesByName("topology-drawn").length > 0);
  const drawn = await page.evaluate(() => Math.round(performance.getEntriesByName("topology-drawn")[0].startTime));
  await page.getByRole("application", { name }).waitFor();
  const figures = [`first drawn ${drawn} ms after the page was asked for`];
  await page.mouse.move(600, 450);
  const measured = async (what, f) => {
    await page.evaluate(() => {
      globalThis.frames_ = { n: 0, from: performance.now() };
      const tick = () => {
        frames_.n++;
        frames_.next = requestAnimationFrame(tick);
      };
      tick();
    });
    await f();
    const rate = await page.evaluate(() => {
      cancelAnimationFrame(frames_.next);
      return (1000 * frames_.n) / (performance.now() - frames_.from);
    });
    figures.push(`${what} ${rate.toFixed(0)} frames/s`);
  };
  const drag = async () => {
    await page.mouse.down();
    for (let i = 0; i < 100; i++) await page.mouse.move(500 + 200 * Math.sin(i / 10), 450 + 150 * Math.cos(i / 10));
    await page.mouse.up();
  };
  await measured("moved", drag);
  await measured("zoomed", async () => {
    for (let i = 0; i < 60; i++) await page.mouse.wheel(0, i < 30 ? -60 : 60);
  });
  for (let i = 0; i < 12; i++) await page.mouse.wheel(0, -100);
  await measured("moved from near", drag);
  await page.getByRole("textbox", { name: "Search the picture" }).fill(find);
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Fold all" }).click();
  await page.getByRole("button", { name: "Unfold all" }).click();
  await page.getByRole("button", { name: "Fold all" }).waitFor();
  return figures.join(", ");
}
