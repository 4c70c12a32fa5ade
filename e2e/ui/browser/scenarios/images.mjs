// Images come to the manager from a registry and from an archive, their functions run, and an example of the catalogue becomes a plan: all of it in the browser.
import { ask, examine, open, say, settled, signedIn } from "../lib.mjs";

export default async function () {
  const page = await signedIn();
  const narrow = await signedIn({ viewport: { width: 360, height: 740 } });
  const { registry, archive } = await ask("registry");
  const button = (name) => page.getByRole("button", { name, exact: true });
  const dialog = page.getByRole("dialog");
  const row = (name) => page.locator("tbody tr", { hasText: name });
  const pull = (reference) => page.getByRole("list", { name: "Pulls" }).locator("li", { hasText: reference });

  // What is no reference to a registry is refused before anything begins.
  await open(page, "/images");
  await button("Pull").click();
  await dialog.getByRole("textbox", { name: "Reference" }).fill("markup:1");
  await dialog.getByText("weir image pull markup:1").waitFor();
  page.strict = false; // 422
  await dialog.getByRole("button", { name: "Pull" }).click();
  await dialog.getByRole("alert").getByText("want REGISTRY/NAME:TAG").waitFor();
  page.strict = true;
  await settled(page);
  await examine(page, "the dialog of a pull");

  // A pull says how far it is; what it brings is in the list at once.
  const reference = `${registry}/markup:1`;
  await dialog.getByRole("textbox", { name: "Reference" }).fill(reference);
  await dialog.getByRole("button", { name: "Pull" }).click();
  await dialog.waitFor({ state: "detached" });
  await pull(reference).getByRole("progressbar").getByText(/ of [1-9]/).waitFor(); // the registry keeps the layers back
  await settled(page);
  await examine(page, "a pull that goes on");
  await open(narrow, "/images");
  await narrow.getByRole("progressbar", { name: `Pull of ${reference}` }).waitFor();
  await examine(narrow, "a pull that goes on, narrow");
  await ask("go on");
  await pull(reference).locator(".state.ok", { hasText: "pulled" }).waitFor();
  await row(reference).waitFor();

  // What is not there, and who does not answer.
  for (const [wrong, says] of [[`${registry}/none:1`, "has no none:1"], [`${registry.replace(/\d+$/, "1")}/markup:1`, "nobody answers"]]) {
    await button("Pull").click();
    await dialog.getByRole("textbox", { name: "Reference" }).fill(wrong);
    await dialog.getByRole("button", { name: "Pull" }).click();
    await pull(wrong).locator(".state.bad", { hasText: "failed" }).waitFor();
    await pull(wrong).getByText(says).waitFor();
  }
  await settled(page);
  await examine(page, "pulls that failed");
  await page.getByRole("button", { name: `Forget the pull of ${registry}/none:1` }).click();
  await pull(`${registry}/none:1`).waitFor({ state: "detached" });

  // An archive: a name that the catalogue has is refused, another one is taken.
  await button("Import").click();
  await page.locator("input[type=file]").setInputFiles(archive);
  await dialog.getByRole("textbox", { name: "Name" }).fill("firewall:1");
  await dialog.getByText("weir image import archive.tar --as firewall:1").waitFor();
  page.strict = false; // 409
  await dialog.getByRole("button", { name: "Import" }).click();
  await dialog.getByRole("alert").getByText("its name is taken").waitFor();
  page.strict = true;
  await settled(page);
  await examine(page, "the dialog of an import");
  await dialog.getByRole("textbox", { name: "Name" }).fill("mine:2");
  await dialog.getByRole("button", { name: "Import" }).click();
  await dialog.waitFor({ state: "detached" });
  await row("mine:2").waitFor();

  // Functions of both run.
  await ask("functions", { name: reference });
  await open(page, "/functions");
  for (const name of ["pulled", "imported"]) await row(name).locator(".state.ok", { hasText: "started" }).waitFor();
  await open(page, "/images");
  await row("mine:2").getByRole("link", { name: "imported" }).waitFor();

  // One that was imported can be deleted; one of the catalogue came with Weir.
  await button("mine:2").click();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await page.getByText("weir image delete mine:2").waitFor();
  await dialog.nth(1).waitFor({ state: "detached" }); // the image's own
  await settled(page);
  await examine(page, "the deletion of an image");
  await dialog.getByRole("button", { name: "Delete" }).click();
  await row("mine:2").waitFor({ state: "detached" });
  await dialog.waitFor({ state: "detached" });

  // What no image uses: the plan says what would go, and why the rest stays.
  await ask("leftover");
  await button("Clean up").click();
  await dialog.getByRole("region", { name: "What would go" }).getByText("an interrupted pull left it").waitFor();
  await dialog.getByRole("region", { name: "What stays" }).getByText(`an image of the store: \`weir image delete ${reference}\` takes it out`).waitFor();
  await dialog.getByText("weir image gc").waitFor();
  await settled(page);
  await examine(page, "what no image uses");
  await dialog.getByRole("button", { name: "Remove" }).click();
  await dialog.waitFor({ state: "detached" });
  if ((await ask("leftover?")).there) throw new Error("what an interrupted pull left is still there");

  // An example of the catalogue becomes a plan.
  await button("shaper:1").click();
  await dialog.getByRole("region", { name: "Example" }).getByText("{from: alice, to: bob").waitFor();
  await dialog.getByText("weir image inspect shaper:1 -o json | jq -r .example").waitFor();
  await settled(page);
  await examine(page, "an image");
  if (await dialog.getByRole("button", { name: "Delete" }).count()) throw new Error("an image of the catalogue can be deleted");
  await dialog.getByRole("link", { name: "Open in the editor" }).click();
  await page.waitForURL("**/apply");
  await button("Plan").click();
  await page.getByText("The plan: nothing has changed yet").waitFor();
  for (const object of ["function/slow", "chain/line", "policy/bounded"]) await page.locator("tr", { hasText: object }).first().waitFor();
  await open(narrow, "/images");
  await narrow.getByRole("button", { name: "shaper:1", exact: true }).click();
  await narrow.getByRole("dialog").getByRole("region", { name: "Example" }).waitFor();
  await settled(narrow);
  await examine(narrow, "an image, narrow");
  say("an image pulled, one imported, an example planned");
}
