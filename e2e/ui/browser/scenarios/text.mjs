// What functions, images and users say is text, never markup.
import { ask, open, say, signedIn } from "../lib.mjs";

const markup = '<img src=x onerror="window.hacked=1">';

export default async function () {
  await ask("hostile");
  const page = await signedIn();
  const text = async (path, wanted, where = "main") => {
    await open(page, path);
    await page.locator(where, { hasText: wanted }).first().waitFor();
  };
  await text("/functions/evil?tab=logs", `${markup}<script>window.hacked=1</script> red  end of the line`, ".log");
  await text("/events", `${markup} javascript:alert(1)`);
  await text("/functions/evil?tab=events", `${markup} javascript:alert(1)`);
  await text("/", `${markup} javascript:alert(1)`);
  await text("/functions/evil", markup); // its config, in the object
  await text("/images", `${markup}<script>window.hacked=1</script> is its description`);
  await page.getByRole("button", { name: "markup:1" }).click();
  await page.getByRole("dialog").getByText(markup, { exact: false }).first().waitFor();
  await page.getByRole("region", { name: "Example" }).getByText(`${markup}<script>window.hacked=1</script> in an example`).waitFor();
  await page.keyboard.press("Escape");
  await text("/functions/new?image=markup:1", "<b>bold</b>");
  await open(page, `/functions/${encodeURIComponent(markup)}`);
  await page.getByText(`There is no function ${markup}`).waitFor();
  await open(page, `/functions?q=${encodeURIComponent(markup)}`);
  for (const path of ["/events", "/images", "/functions/evil"]) {
    await open(page, path);
    const odd = await page.evaluate(() => [window.hacked, document.querySelectorAll("img[src=x], b, main script").length]);
    if (odd[0] !== undefined || odd[1]) throw new Error(`${path}: markup became elements: ${odd}`);
  }
  say("markup in names, logs, events, descriptions, schemas, configs and examples is text");
}
