package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/lab/report"
)

// maxSummary bounds the runs of a summary.
const maxSummary = 100

func (a *labs) labSummary() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "summary DIR... [--out DIR]", Short: "Sum up what runs say of the five papers",
		Long: `Sum up what runs of several studies say of the papers: every claim, its verdict, our figure with its interval, and a link to the trials. A claim's
verdict is that of the run that tells most. Claims that no run has judged are told as "not run". With --out also write the page: summary.html, summary.md
and summary.json.`,
		Example: "  weir lab summary results/*\n  weir lab summary results/wires results/hosts --out /tmp/summary\n  weir lab summary results/wires -o json",
		Args:    command.WantArgs(1, maxSummary, "directories of results"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := report.Summarise(a.directories(args)...)
			if errors.Is(err, report.ErrSummary) {
				return command.Usage("%w", err)
			}
			if err != nil {
				return labCode(err)
			}
			if out != "" {
				paths, err := s.Write(out)
				if err != nil {
					return err
				}
				fmt.Fprintf(a.Stderr, "summary: %s\n", paths[slices.IndexFunc(paths, func(p string) bool { return strings.HasSuffix(p, ".html") })])
			}
			if a.Structured() {
				return a.Encode(s)
			}
			return s.Text(a.Stdout)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "directory to write the page into")
	return cmd
}

// directories leaves out what is a file, so that results/* can be given.
func (a *labs) directories(args []string) (out []string) {
	for _, arg := range args {
		if st, err := os.Stat(arg); err == nil && !st.IsDir() {
			fmt.Fprintf(a.Stderr, "left out: %s is no directory\n", arg)
			continue
		}
		out = append(out, arg)
	}
	return out
}
