package unit

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// Every module that the Go linker recorded in the program is in its bill of materials, with a hash.
func TestSBOMNamesEveryModule(t *testing.T) {
	out, err := exec.Command("../../bin/weir", "version", "--sbom").Output()
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Format     string `json:"bomFormat"`
		Version    string `json:"specVersion"`
		Components []struct {
			Name, Version, PURL string
			Hashes              []struct{ Alg, Content string }
		}
	}
	if err := json.Unmarshal(out, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Format != "CycloneDX" || bom.Version != "1.6" {
		t.Errorf("%s %s, want CycloneDX 1.6", bom.Format, bom.Version)
	}
	found := map[string]string{}
	for _, c := range bom.Components {
		found[c.Name] = c.Version
		if c.Name != "std" && (len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64 || c.PURL != "pkg:golang/"+c.Name+"@"+c.Version) {
			t.Errorf("%+v", c)
		}
	}
	if found["std"] == "" {
		t.Error("the Go standard library is missing")
	}
	built, err := exec.Command("go", "version", "-m", "../../bin/weir").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := 0
	for line := range strings.Lines(string(built)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "dep" {
			continue
		}
		modules++
		if found[f[1]] != f[2] {
			t.Errorf("%s: %q in the bill, %s in the program", f[1], found[f[1]], f[2])
		}
	}
	if modules < 10 {
		t.Errorf("%d modules in the program: is it built in module mode?", modules)
	}
}
