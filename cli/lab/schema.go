package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/lab"
	"weir.dev/weir/lab/experiment"
	"weir.dev/weir/lab/report"
)

func (a *labs) labSchema() *cobra.Command {
	schemas := map[string]func() []byte{"study": lab.Schema, "results": report.JournalSchemaJSON, "report": report.SchemaJSON}
	return &cobra.Command{
		Use: "schema [study|results|report]", Short: "Print the JSON Schema of the lab's files",
		Long: `Print the JSON Schema of a study's file (the default), with what each experiment measures and can vary; of a line of results.jsonl; or
of report.json.`,
		Example: "  weir lab schema > study.schema.json\n  # in an editor: the first line of a study is then\n  # yaml-language-server: $schema=study.schema.json\n  weir lab schema results",
		Args:    command.WantArgs(0, 1, "study, results or report"),
		RunE: func(_ *cobra.Command, args []string) error {
			of := "study"
			if len(args) > 0 {
				of = args[0]
			}
			schema, ok := schemas[of]
			if !ok {
				return command.Usage("there is no schema of %q: want study, results or report", of)
			}
			_, err := a.Stdout.Write(schema())
			return err
		},
	}
}

func (a *labs) labExperiments() *cobra.Command {
	return &cobra.Command{
		Use: "experiments [NAME]", Short: "List what a study can measure",
		Long: `List the experiments that the parts of a study can name: what they measure, in which unit, and what they can vary. A study names a factor
with levels, or as a setting that is the same for all; what it does not name is as by default.`,
		Example: "  weir lab experiments\n  weir lab experiments tcp\n  weir lab experiments -o json",
		Args:    command.WantArgs(0, 1, "an experiment"),
		RunE: func(_ *cobra.Command, args []string) error {
			// Choose the experiments.
			names := experiment.Names()
			if len(args) > 0 {
				if !slices.Contains(names, args[0]) {
					return command.WithCode(command.ExitNotFound, fmt.Errorf("there is no experiment %q: %s", args[0], file.Choose(args[0], names)))
				}
				names = args[:1]
			}
			// Collect what a study can name of each.
			type factor struct {
				Name    string `json:"name"`
				About   string `json:"about"`
				Default string `json:"default,omitempty"`
			}
			type item struct {
				Name    string            `json:"name"`
				About   string            `json:"about"`
				Metrics map[string]string `json:"metrics"` // with their units
				Factors []factor          `json:"factors"`
			}
			items := []item{}
			for _, name := range names {
				x := experiment.All()[name]
				i := item{Name: name, About: x.About(), Metrics: x.Metrics(), Factors: []factor{}}
				known, _ := experiment.Factors(x)
				for _, f := range known {
					i.Factors = append(i.Factors, factor{f.Name, f.About, f.Default})
				}
				items = append(items, i)
			}
			if a.Structured() {
				return a.Encode(map[string]any{"items": items})
			}
			// Print it as text.
			var b strings.Builder
			for n, i := range items {
				if n > 0 {
					b.WriteString("\n")
				}
				fmt.Fprintf(&b, "%s: %s\n", i.Name, i.About)
				for _, m := range slices.Sorted(maps.Keys(i.Metrics)) {
					fmt.Fprintf(&b, "  metric  %-15s %s\n", m, i.Metrics[m])
				}
				for _, f := range i.Factors {
					def := ""
					if f.Default != "" {
						def = " (default " + f.Default + ")"
					}
					fmt.Fprintf(&b, "  factor  %-15s %s%s\n", f.Name, f.About, def)
				}
			}
			_, err := a.Stdout.Write([]byte(b.String()))
			return err
		},
	}
}
