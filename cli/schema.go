package cli

import (
	"github.com/spf13/cobra"

	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the declarative file",
		Example: "  weir schema > weir.schema.json\n  # in an editor: the first line of a file is then\n  # yaml-language-server: $schema=weir.schema.json",
		Args:    command.NoArgs(),
		RunE: func(*cobra.Command, []string) error {
			_, err := a.Stdout.Write(file.Schema())
			return err
		},
	}
}
