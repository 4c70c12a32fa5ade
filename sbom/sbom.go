// Package sbom writes software bills of materials, CycloneDX 1.6 documents in JSON: what a program or an image is made of. A document has no serial number and
// no time, so the same parts give the same bytes.
package sbom

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// MediaType of the documents.
const MediaType = "application/vnd.cyclonedx+json"

// Document is a bill that grows. Make it with New.
type Document struct {
	self       cyclonedx.Component
	components map[string]cyclonedx.Component // by their references
	needs      map[string][]string            // references, by the reference of what needs them
}

// New makes the document of a program or an image.
func New(self cyclonedx.Component) *Document {
	return &Document{self: self, components: map[string]cyclonedx.Component{}, needs: map[string][]string{}}
}

// Self is the reference of what the document is about.
func (d *Document) Self() string { return d.self.BOMRef }

// Add a component that another one needs. One that is there already is not added again.
func (d *Document) Add(neededBy string, c cyclonedx.Component) {
	if _, ok := d.components[c.BOMRef]; !ok {
		d.components[c.BOMRef] = c
	}
	if !slices.Contains(d.needs[neededBy], c.BOMRef) {
		d.needs[neededBy] = append(d.needs[neededBy], c.BOMRef)
	}
}

// AddModules adds Go's standard library and the modules that a program was linked from.
func (d *Document) AddModules(neededBy string, info *debug.BuildInfo) {
	std := GoModule("std", strings.TrimPrefix(info.GoVersion, "go"))
	std.Version = info.GoVersion
	d.Add(neededBy, std)
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		c := GoModule(m.Path, m.Version)
		if hash, ok := moduleHash(m.Sum); ok {
			c.Hashes = SHA256(hash)
		}
		d.Add(neededBy, c)
	}
}

// GoModule is a library.
func GoModule(path, version string) cyclonedx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}

// SHA256 is a component's hash, in hexadecimal digits.
func SHA256(digits string) *[]cyclonedx.Hash {
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: digits}}
}

// Write the document.
func (d *Document) Write(w io.Writer) error {
	bom := cyclonedx.NewBOM()
	bom.SpecVersion = cyclonedx.SpecVersion1_6
	bom.Metadata = &cyclonedx.Metadata{Component: &d.self}
	components, needs := []cyclonedx.Component{}, []cyclonedx.Dependency{}
	for _, c := range d.components {
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	for ref, of := range d.needs {
		slices.Sort(of)
		needs = append(needs, cyclonedx.Dependency{Ref: ref, Dependencies: &of})
	}
	slices.SortFunc(needs, func(a, b cyclonedx.Dependency) int { return cmp.Compare(a.Ref, b.Ref) })
	bom.Components, bom.Dependencies = &components, &needs
	if err := cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write SBOM: %w", err)
	}
	return nil
}

// moduleHash turns a line of go.sum ("h1:" and base64) into hexadecimal digits.
func moduleHash(sum string) (string, bool) {
	text, ok := strings.CutPrefix(sum, "h1:")
	if !ok {
		return "", false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return hex.EncodeToString(raw), err == nil
}
