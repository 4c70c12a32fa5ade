package command

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Variable is the environment variable of a flag.
func Variable(flag string) string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Once marks a flag of one deed, which nobody wants done again at each start or with each object: it has no variable.
const Once = "once"

func HasNoVariable(f *pflag.Flag) bool { return f.Annotations[Once] != nil }

// DescribeEnvironment names each flag's variable in its help.
func DescribeEnvironment(cmd *cobra.Command) {
	note := func(f *pflag.Flag) {
		if !HasNoVariable(f) {
			f.Usage += " [$" + Variable(f.Name) + "]"
		}
	}
	cmd.PersistentFlags().VisitAll(note)
	cmd.LocalNonPersistentFlags().VisitAll(note)
	for _, c := range cmd.Commands() {
		DescribeEnvironment(c)
	}
}

// byEnvironment marks a flag that the command line leaves out.
const byEnvironment = "environment"

// OnCommandLine tells that a flag is given where this one command is, and not for a whole shell.
func OnCommandLine(cmd *cobra.Command, name string) bool {
	f := cmd.Flags().Lookup(name)
	return f != nil && f.Changed && f.Annotations[byEnvironment] == nil
}

// FromEnvironment sets the flags that the command line leaves out.
func FromEnvironment(cmd *cobra.Command) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(Variable(f.Name))
		if f.Changed || value == "" || f.Name == "help" || HasNoVariable(f) || failed != nil {
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
				failed = Usage("environment variable %s=%q: %w", Variable(f.Name), value, err)
			}
		}
	})
	return failed
}

func EnvironmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "Flags as environment variables",
		Long: fmt.Sprintf(`Every flag but --restore and --replace of weir up and weir manager, and --runtime of weir function, can be given as an environment variable: %s, then the flag's name in capitals with _ for -.
--token-file is %s, -f or --file is %s. The command line wins. An empty variable is as good as none.
Flags that may be repeated take a list with commas. NO_COLOR=1 and TERM=dumb switch colours off.`,
			"WEIR_", Variable("token-file"), Variable("file")),
		Example: "  WEIR_NAME=lab WEIR_OUTPUT=json weir get functions"}
}
