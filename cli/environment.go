package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// once marks a flag of one deed, which nobody wants done again at each start: it has no variable.
const once = "once"

func hasNoVariable(f *pflag.Flag) bool { return f.Annotations[once] != nil }

// describeEnvironment names each flag's variable in its help.
func describeEnvironment(cmd *cobra.Command) {
	note := func(f *pflag.Flag) {
		if !hasNoVariable(f) {
			f.Usage += " [$" + variable(f.Name) + "]"
		}
	}
	cmd.PersistentFlags().VisitAll(note)
	cmd.LocalNonPersistentFlags().VisitAll(note)
	for _, c := range cmd.Commands() {
		describeEnvironment(c)
	}
}

// byEnvironment marks a flag that the command line leaves out.
const byEnvironment = "environment"

// onCommandLine tells that a flag is given where this one command is, and not for a whole shell.
func onCommandLine(cmd *cobra.Command, name string) bool {
	f := cmd.Flags().Lookup(name)
	return f != nil && f.Changed && f.Annotations[byEnvironment] == nil
}

// fromEnvironment sets the flags that the command line leaves out.
func fromEnvironment(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(variable(f.Name))
		if f.Changed || value == "" || f.Name == "help" || hasNoVariable(f) || failed != nil {
			return
		}
		values := []string{value}
		if f.Value.Type() == "stringArray" {
			values = strings.Split(value, ",")
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[byEnvironment] = values
		for _, v := range values {
			if err := cmd.Flags().Set(f.Name, v); err != nil {
				failed = usage("environment variable %s=%q: %w", variable(f.Name), value, err)
			}
		}
	})
	return failed
}

func environmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "Flags as environment variables",
		Long: fmt.Sprintf(`Every flag but --restore and --replace of weir up and weir manager can be given as an environment variable: %s, then the flag's name in capitals with _ for -.
--token-file is %s, -f or --file is %s. The command line wins. An empty variable is as good as none.
Flags that may be repeated take a list with commas. NO_COLOR=1 and TERM=dumb switch colours off.`,
			"WEIR_", variable("token-file"), variable("file")),
		Example: "  WEIR_NAME=lab WEIR_OUTPUT=json weir get functions"}
}
