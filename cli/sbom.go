package cli

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes what this program is built from: a CycloneDX 1.6 document in JSON, made of what the Go linker recorded in the binary.
func writeSBOM(w io.Writer, version string) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program holds no build information: it was not built in module mode")
	}
	bom := cyclonedx.NewBOM()
	bom.SpecVersion = cyclonedx.SpecVersion1_6
	self := cyclonedx.Component{BOMRef: purl(info.Main.Path, version), Type: cyclonedx.ComponentTypeApplication, Name: "weir", Version: version, PackageURL: purl(info.Main.Path, version)}
	goComponent := cyclonedx.Component{BOMRef: purl("std", strings.TrimPrefix(info.GoVersion, "go")), Type: cyclonedx.ComponentTypeLibrary, Name: "std",
		Version: info.GoVersion, PackageURL: purl("std", strings.TrimPrefix(info.GoVersion, "go"))}
	bom.Metadata = &cyclonedx.Metadata{Component: &self}
	components := []cyclonedx.Component{goComponent}
	needs := []string{goComponent.BOMRef}
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		c := cyclonedx.Component{BOMRef: purl(m.Path, m.Version), Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version)}
		if hash, ok := moduleHash(m.Sum); ok {
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hash}}
		}
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: self.BOMRef, Dependencies: &needs}}
	if err := cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write SBOM: %w", err)
	}
	return nil
}

// purl is a Go module's package URL.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }

// moduleHash turns a line of go.sum ("h1:" and base64) into hexadecimal digits.
func moduleHash(sum string) (string, bool) {
	text, ok := strings.CutPrefix(sum, "h1:")
	if !ok {
		return "", false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return hex.EncodeToString(raw), err == nil
}
