package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
)

func (a *app) versionCommand() *cobra.Command {
	var sbom bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program, or what it is built from",
		Example: "  weir version\n  weir version -o json\n  weir version --sbom > weir.cdx.json",
		Args:    command.NoArgs(),
		RunE: func(*cobra.Command, []string) error {
			if sbom {
				return writeSBOM(a.Stdout, a.o.Version)
			}
			if a.Structured() {
				return a.Encode(map[string]string{"version": a.o.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(a.Stdout, "weir %s (%s, %s/%s)\n", a.o.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	cmd.Flags().BoolVar(&sbom, "sbom", false, "print the software bill of materials (CycloneDX, JSON): every module with version and hash")
	return cmd
}
