package cli_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir.dev/weir/cli/command"
)

// writeDocs writes the reference of all commands as Markdown: docs/cli.md.
func writeDocs(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	b.WriteString("# Commands\n\n<!-- Generated from the commands (go test ./cli -run Docs -update). Do not edit. -->\n\n")
	fmt.Fprintf(&b, "%s\n\nThe file that `weir apply` takes: [file.md](file.md).\n\n", root.Long)
	b.WriteString("## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	b.WriteString("## Exit codes\n\n| code | meaning |\n|---|---|\n")
	for _, e := range command.ExitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.Code, e.Meaning)
	}
	b.WriteString("\n" + command.FilesRule + "\n\n`weir function exec` ends with the code of the process that it ran.\n\n")
	for _, c := range root.Commands() {
		if c.Name() == "environment" {
			fmt.Fprintf(&b, "## Environment\n\n%s\n\n", c.Long)
		}
	}
	for _, c := range root.Commands() {
		writeCommand(&b, c)
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	if !c.IsAvailableCommand() {
		return
	}
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "## %s\n\n%s\n\n", c.CommandPath(), text)
	if !c.HasSubCommands() {
		fmt.Fprintf(b, "```\n%s\n```\n\n", c.UseLine())
	}
	fmt.Fprintf(b, "Examples:\n\n```sh\n%s\n```\n\n", unindent(c.Example))
	writeFlags(b, c.LocalNonPersistentFlags())
	for _, sub := range c.Commands() {
		writeCommand(b, sub)
	}
}

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, "  ")
	}
	return strings.Join(lines, "\n")
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	rows := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		if rows++; rows == 1 {
			b.WriteString("| flag | default | environment | meaning |\n|---|---|---|---|\n")
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		meaning := strings.TrimSuffix(f.Usage, " [$"+command.Variable(f.Name)+"]")
		from := "`" + command.Variable(f.Name) + "`"
		if command.HasNoVariable(f) {
			from = ""
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, value, from, strings.ReplaceAll(meaning, "|", `\|`))
	})
	if rows > 0 {
		b.WriteByte('\n')
	}
}
