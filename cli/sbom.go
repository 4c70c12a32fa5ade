package cli

import (
	"errors"
	"io"
	"runtime/debug"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"

	"weir.dev/weir/sbom"
)

// writeSBOM writes what this program is built from, as the Go linker recorded it in the binary.
func writeSBOM(w io.Writer, version string) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("this program holds no build information: it was not built in module mode")
	}
	self := sbom.GoModule(info.Main.Path, version)
	self.Type, self.Name = cyclonedx.ComponentTypeApplication, "weir"
	d := sbom.New(self)
	d.AddModules(d.Self(), info)
	return d.Write(w)
}
