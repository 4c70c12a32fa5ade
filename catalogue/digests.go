package catalogue

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weir.dev/weir/image"
)

// DigestsFile is the list, in this folder, of what everybody gets who builds the catalogue's images without Debian packages.
const DigestsFile = "digests.txt"

// Digests of images, and the tools that they hold for (image.Tools).
type Digests struct {
	Tools  []string
	Images map[string]string // NAME:TAG to sha256:...
}

const digestsHead = `# Digests of the catalogue's images without Debian packages: whoever builds them from these sources with these tools gets the same, bit by bit.
# make generate writes this file. docs/images.md says how to compare.
`

// toolWord begins the line of a tool.
const toolWord = "tool "

// ReadDigests reads a list.
func ReadDigests(file string) (Digests, error) {
	d := Digests{Images: map[string]string{}}
	raw, err := os.ReadFile(file)
	if err != nil {
		return d, err
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		tool, isTool := strings.CutPrefix(line, toolWord)
		name, digest, pair := strings.Cut(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case isTool:
			d.Tools = append(d.Tools, tool)
		case pair && strings.HasPrefix(digest, "sha256:"):
			d.Images[name] = digest
		default:
			return d, fmt.Errorf("%s: %q: want NAME:TAG sha256:DIGEST, or a tool", file, line)
		}
	}
	return d, nil
}

// Write a list.
func (d Digests) Write(file string) error {
	var b bytes.Buffer
	b.WriteString(digestsHead)
	for _, t := range d.Tools {
		fmt.Fprintf(&b, "%s%s\n", toolWord, t)
	}
	for _, name := range d.names() {
		fmt.Fprintf(&b, "%s %s\n", name, d.Images[name])
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

func (d Digests) names() []string { return slices.Sorted(maps.Keys(d.Images)) }

// OtherTools are those of a list that this machine has otherwise, or not: "Go go1.26.8 GOAMD64=v1, here Go go1.27.0 GOAMD64=v1".
func (d Digests) OtherTools(here []string) (other []string) {
	for i := range max(len(d.Tools), len(here)) {
		listed, mine := "nothing", "nothing"
		if i < len(d.Tools) {
			listed = d.Tools[i]
		}
		if i < len(here) {
			mine = here[i]
		}
		if listed != mine {
			other = append(other, listed+", here "+mine)
		}
	}
	return other
}

// Differ are the images that two lists have otherwise, with both digests.
func (d Digests) Differ(built Digests) (all []string) {
	both := Digests{Images: maps.Clone(d.Images)}
	maps.Copy(both.Images, built.Images)
	for _, name := range both.names() {
		if listed, mine := d.Images[name], built.Images[name]; listed != mine {
			all = append(all, fmt.Sprintf("%s: %s is listed, %s was built", name, cmp.Or(listed, "none"), cmp.Or(mine, "none")))
		}
	}
	return all
}

// HoldHere tells whether the list in a clone of the repository holds for this machine.
func HoldHere(ctx context.Context, clone string) (bool, error) {
	d, err := ReadDigests(filepath.Join(clone, "catalogue", DigestsFile))
	if err != nil {
		return false, err
	}
	here, err := image.Tools(ctx, clone)
	return err == nil && len(d.OtherTools(here)) == 0, err
}
