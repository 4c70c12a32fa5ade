// A link that is opened where somebody is signed in takes the session's place only if its user says so.
import { ask, examine, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  const who = () => page.evaluate(async () => (await (await fetch("/v1/session")).json()).who);
  const before = await who();
  const link = await ask("viewer");
  await page.goto(link);
  await page.getByRole("heading", { name: `You are signed in as ${before}` }).waitFor();
  if (page.url().includes("#")) throw new Error(`the code is in the address: ${page.url()}`);
  await examine(page, "the question");
  await page.getByRole("button", { name: "Stay signed in" }).click();
  await page.waitForSelector(".frame h1");
  if ((await who()) !== before) throw new Error("the link was used unasked");
  await page.goto(link); // it was not used
  await page.getByRole("button", { name: "Use this link" }).click();
  await page.waitForSelector(".frame h1");
  const after = await who();
  if (after === before) throw new Error(`still signed in as ${after}`);
}
