// The manager hangs, then dies and starts again, while pages are open. They say so within seconds and go on by themselves, still signed in, and miss
// nothing. Then everybody is signed out: somebody signs in again, in another tab, then in the page.
import { ask, fail, open, say, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  await page.locator(".live.on").waitFor();
  await open(page, "/functions?q=fw");
  page.strict = false; // from here on requests fail
  const banner = page.locator(".banner", { hasText: "The connection to Weir is lost" });

  const timed = async (what) => {
    await ask(what);
    const began = Date.now();
    await banner.waitFor();
    return (Date.now() - began) / 1000;
  };
  const hung = await timed("hang");
  await ask("go on");
  await banner.waitFor({ state: "detached" });
  await page.locator(".live.on").waitFor();
  await ask("label", { function: "w1" }); // a change after that arrives
  await open(page, "/functions/w1");
  await page.locator("dd", { hasText: "bypass" }).waitFor();

  await open(page, "/functions?q=fw");
  const log = await page.context().newPage(); // a log is followed beside
  await log.goto(new URL("/functions/fw?tab=logs", page.url()).href);
  await log.getByRole("log").getByText("rules in force").first().waitFor();
  const died = await timed("kill");
  await log.getByRole("button", { name: "Follow again" }).waitFor();
  if (!(await page.locator("tbody tr", { hasText: "fw" }).count())) throw new Error("what was known is not shown any more");
  // It heals by itself: nobody signs in, nothing is loaded anew, and a change that was made before it was back is there.
  const loaded = await page.evaluate(() => performance.timeOrigin);
  const refused = (r) => r.status() === 401 && fail(`after the restart: ${r.request().method()} ${r.url()}: 401`);
  page.on("response", refused);
  const context = page.context();
  await context.setOffline(true);
  await ask("start");
  await ask("label", { function: "fw" }); // and w1 is as before again
  await context.setOffline(false);
  await banner.waitFor({ state: "detached" });
  await page.locator(".live.on").waitFor();
  await page.locator("tbody tr", { hasText: "fw" }).locator(".state.ok").waitFor();
  for (const [name, then, before] of [["fw", "bypass", "drop"], ["w1", "drop", "bypass"]]) {
    await open(page, `/functions/${name}`);
    await page.locator("dd", { hasText: then }).waitFor();
    if (await page.locator("dd", { hasText: before }).count()) throw new Error(`${name}: a change during the restart was missed`);
  }
  if ((await page.evaluate(() => performance.timeOrigin)) !== loaded) throw new Error("the page was loaded anew");
  if (await page.getByText("Your session has ended").count()) throw new Error("the page asks to sign in");
  page.off("response", refused);
  await log.getByRole("button", { name: "Follow again" }).waitFor({ state: "detached" });
  await log.getByRole("log").getByText("rules in force").first().waitFor();
  await log.close();

  // Ten tabs at once are all live: a browser has six connections for all of them.
  const tabs = await Promise.all(Array.from({ length: 10 }, () => page.context().newPage()));
  await Promise.all(tabs.map((t) => t.goto(new URL("/functions?q=fw", page.url()).href)));
  await Promise.all(tabs.map((t) => t.locator(".live.on").waitFor()));
  await Promise.all(tabs.map((t) => t.locator("tbody tr", { hasText: "fw" }).locator(".state.ok").waitFor()));
  await Promise.all(tabs.map((t) => t.close()));

  await open(page, "/functions?q=fw");
  await ask("sign out");
  await page.getByText("Your session has ended").waitFor();
  const tab = await page.context().newPage();
  await tab.goto(await ask("link"));
  await tab.waitForSelector(".frame h1");
  await page.locator("tbody tr", { hasText: "fw" }).locator(".state.ok").waitFor();
  if (!page.url().endsWith("/functions?q=fw")) throw new Error(`the page went to ${page.url()}`);
  await page.locator(".live.on").waitFor();
  const token = (await ask("token")).token;
  await ask("sign out");
  await page.getByText("Your session has ended").waitFor();
  await page.getByRole("textbox", { name: "Token" }).fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.locator("tbody tr", { hasText: "fw" }).waitFor();
  // This token is a viewer's: what needs more cannot be pressed, and a log says why it is not shown.
  await open(page, "/functions/fw");
  if (!(await page.getByRole("button", { name: "Restart" }).isDisabled())) throw new Error("a viewer can press Restart");
  await open(page, "/functions/fw?tab=logs");
  await page.getByText("needs the role operator").first().waitFor();
  say(`the banner came ${hung.toFixed(1)} s after the manager hung, ${died.toFixed(1)} s after it was killed`);
}
