// The manager hangs, then dies and starts again, while pages are open. They say so within seconds and go on by themselves; a session ends with the manager
// that made it, so somebody signs in again, in another tab.
import { ask, open, say, signedIn } from "../lib.mjs";

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
  const died = await timed("kill");
  if (!(await page.locator("tbody tr", { hasText: "fw" }).count())) throw new Error("what was known is not shown any more");
  await ask("start");
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
