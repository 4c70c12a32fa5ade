package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  weir version\n  weir version -o json",
		Args:    noArgs(),
		RunE: func(*cobra.Command, []string) error {
			if a.structured() {
				return a.encode(map[string]string{"version": a.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := fmt.Fprintf(a.Stdout, "weir %s (%s, %s/%s)\n", a.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
