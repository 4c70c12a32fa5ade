// Another user of the machine has the UI's address while Weir is down. What that one left in the browser, a service worker and cached files under the names of the
// UI's own, does not outlive the next link.
import { ask, browser, say } from "../lib.mjs";

export default async function () {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(20_000);
  const address = await ask("squat");
  await page.goto(address);
  await page.getByText("squatted, ready").waitFor(); // the worker is there, and the files are cached
  await ask("leave");
  await page.goto(address);
  await page.getByText("squatted").waitFor(); // nothing of Weir was asked yet
  await page.getByRole("heading", { name: "Sign in" }).waitFor(); // the browser has asked for the worker's script meanwhile
  say("the worker is gone");
  await page.goto(await ask("link"));
  await page.waitForSelector(".frame h1");
  await page.goto(address);
  await page.waitForSelector(".frame h1");
  if (await page.evaluate(async () => (await navigator.serviceWorker.getRegistrations()).length)) throw new Error("a service worker is left");
}
