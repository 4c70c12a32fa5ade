// From an empty machine to a lit way by the forms alone; then a conflict with its packet, a trace, a chain's mistake, and undo.
import { ask, examine, open, say, settled, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  const spaces = await ask("spaces");
  const field = (name) => page.getByRole("textbox", { name, exact: true });
  const choice = (name) => page.getByRole("combobox", { name, exact: true });
  const apply = () => page.getByRole("button", { name: "Apply", exact: true }).click();
  const planned = (what) => page.getByRole("region", { name: "Changes" }).locator("tr", { hasText: what }).first().waitFor();

  // Step by step.
  await page.getByRole("link", { name: "Step by step" }).click();
  for (const [name, address] of [["alice", "10.9.0.1/24"], ["bob", "10.9.0.2/24"]]) {
    await field("Name").fill(name);
    await field("Network namespace").fill(spaces[name]);
    await field("Address").fill(address);
    await planned(`endpoint/${name}`);
    await apply();
    await page.getByText(`endpoint/${name} is made.`).waitFor();
  }
  await examine(page, "/start");
  await page.locator("section", { hasText: "2 of 2 up" }).first().waitFor();
  for (const [name, image] of [["w1", "wire"], ["mon", "monitor"]]) {
    if (name === "mon") await page.getByRole("region", { name: "A function" }).getByRole("button", { name: "More" }).click();
    await choice("Image").click();
    await page.getByRole("option", { name: image, exact: true }).click();
    await field("Name").fill(name);
    await planned(`function/${name}`);
    await apply();
    await page.getByText(`function/${name} is made.`).waitFor();
  }
  await page.getByRole("link", { name: "New policy" }).click();
  await field("Name").fill("guests");
  await choice("Match").or(field("Match")).first().fill("icmp");
  await page.keyboard.press("Enter");
  await field("Name of the chain").fill("web");
  await choice("Path").fill("w1 | m"); // completed; a monitor only gets copies
  await page.keyboard.press("Enter");
  if ((await choice("Path").inputValue()) !== "w1 | tap:mon") throw new Error(`completed to ${await choice("Path").inputValue()}`);
  await planned("policy/guests");
  await planned("chain/web");
  await examine(page, "/policies/new filled in");
  await apply();
  await page.waitForURL("**/policies/guests");
  await page.locator(".page-head .state.ok", { hasText: "active" }).waitFor();
  const { lost } = await ask("ping", { from: spaces.alice });
  if (lost) throw new Error("pings were lost in the chain");

  // Its way is lit, with what passes now.
  await ask("traffic");
  await page.locator('dt:text-is("now") + dd', { hasText: /packets [1-9]/ }).waitFor();
  await page.locator('dt:text-is("dropped") + dd', { hasText: "nothing at the ports of its way" }).waitFor();
  await page.getByRole("link", { name: "In the topology" }).click();
  const way = page.getByRole("list", { name: "Way of packets" });
  await way.locator("li", { hasText: "w1" }).locator(".figures", { hasText: /^[1-9][0-9]*\/s/ }).waitFor();
  await way.locator("li.copy", { hasText: "mon" }).waitFor();
  await page.getByRole("list", { name: "Way of replies" }).locator("li", { hasText: "alice" }).waitFor();
  await lit(page);
  await settled(page);
  await examine(page, "/topology with a way");
  // Keys: the canvas takes the focus, arrows go over the nodes, Enter opens one.
  await page.getByRole("application").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.waitForURL(/node=/);
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/(functions|endpoints|hosts)\//);
  // Keys and letters that come before the browser has drawn what the last one did: each counts for what is chosen now.
  await open(page, "/topology?policy=guests");
  await page.getByRole("application").evaluate(async (canvas) => {
    for (const key of ["ArrowRight", "ArrowRight", "Enter"]) {
      canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      await null; // two events are never closer
    }
  });
  await page.waitForURL(/\/(functions|endpoints|hosts)\//);
  await open(page, "/topology");
  const search = page.getByRole("textbox", { name: "Search the picture" });
  await search.evaluate(async (field) => {
    const type = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set; // as a key does, without a word to React
    for (const letter of "alice") {
      type.call(field, field.value + letter);
      field.dispatchEvent(new InputEvent("input", { data: letter, bubbles: true }));
      await null;
    }
  });
  if ((await search.inputValue()) !== "alice" || new URL(page.url()).searchParams.get("q") !== "alice") throw new Error(`of alice the search has ${await search.inputValue()}, at ${page.url()}`);

  // Another policy for the same packet: the packet is shown, and one click settles it.
  await open(page, "/policies/new?from=alice&to=bob");
  await field("Name").fill("other");
  await page.getByText("A new one", { exact: true }).click();
  await field("Name of the chain").fill("second");
  page.strict = false; // refusals are 422
  await choice("Path").fill("w1");
  await page.getByText("column 1").waitFor();
  await page.getByText("w1 is in chain web: a function stands in one chain").waitFor();
  await page.getByText("One that is there", { exact: true }).click();
  await choice("Chain").click();
  await page.getByRole("option", { name: "web" }).click();
  await page.getByText("Conflict with policy").waitFor();
  await page.locator(".witness", { hasText: "icmp 10.9.0.1 -> 10.9.0.2" }).waitFor();
  await examine(page, "a conflict");
  await page.getByRole("button", { name: "Outrank it: priority 101" }).click();
  await planned("policy/other");
  page.strict = true;
  await apply();
  await page.waitForURL("**/policies/other");
  await page.locator(".page-head .state.ok", { hasText: "active" }).waitFor();

  // A trace says who decides and who is outranked.
  await page.getByRole("link", { name: "Trace", exact: true }).first().click();
  await choice("From").click();
  await page.getByRole("option", { name: "alice" }).click();
  await choice("To").click();
  await page.getByRole("option", { name: "bob" }).click();
  await page.locator(".verdicts li", { hasText: "other decides" }).first().waitFor();
  await page.locator(".verdicts li", { hasText: "guests selects it, too, and is outranked" }).first().waitFor();
  await page.getByText("Arrives at bob").waitFor();
  await page.locator(".command", { hasText: "weir trace alice bob" }).waitFor();

  // A change of the chain, and back.
  await open(page, "/chains/web");
  await choice("Functions").fill("w1");
  await planned("w1 | tap:mon -> w1");
  await apply();
  await page.locator(".chain-options").waitFor({ state: "hidden" });
  await page.getByText("chain/web is changed.").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("dialog").getByText("w1 -> w1 | tap:mon").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Undo it" }).click();
  await page.getByText("The last change is undone.").waitFor();
  await page.waitForFunction(() => document.querySelector(".chain-editor input")?.value === "w1 | tap:mon");

  // What may enter at an endpoint.
  await open(page, "/endpoints/bob");
  await page.getByRole("button", { name: "Change" }).click();
  await page.getByText("Port security: what may enter here").click();
  await choice("Frames with forged addresses").click();
  await page.getByRole("option", { name: "on: they are dropped" }).click();
  await page.getByRole("textbox", { name: "Shared addresses" }).or(choice("Shared addresses")).first().fill("10.9.0.80");
  await page.keyboard.press("Enter");
  await planned("endpoint/bob");
  await examine(page, "/endpoints/bob with port security");
  await apply();
  await page.locator('dt:text-is("port security") + dd', { hasText: "on" }).waitFor();
  await page.locator('dt:text-is("shared addresses") + dd', { hasText: "10.9.0.80" }).waitFor();

  // Deletion can be undone, too.
  await open(page, "/policies/other");
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByText("weir delete policy other").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForURL((u) => u.pathname === "/policies");
  await page.locator("tbody tr", { hasText: "guests" }).first().waitFor(); // the list is there
  await page.locator("tbody tr", { hasText: "other" }).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Undo it" }).click();
  await page.locator("tbody tr", { hasText: "other" }).locator(".state.ok").waitFor();
  const spec = (await ask("policy", { name: "other" })).spec;
  if (spec.priority !== 101 || spec.chain !== "web") throw new Error(`undone to ${JSON.stringify(spec)}`);
  say("a policy by the forms alone, its way lit; a conflict, a trace, undo");
}

/** Something is drawn on the canvas of the way. */
async function lit(page) {
  await page.waitForFunction(() => {
    const c = document.querySelector("canvas[role=application]");
    const pixels = c?.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    return pixels?.some((v, i) => i % 4 === 3 && v > 0);
  });
}
