package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

// exported begins each file of weir export: others are never written over.
const exported = "# Written by weir export."

func (a *app) exportCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write what is declared as files that can be applied again",
		Long: `Write what is declared as files for weir apply -f. To apply them where they come from changes nothing. With -f DIR there is a file for each kind
(endpoints.yaml, functions.yaml, chains.yaml, policies.yaml), sorted by names, to keep in a repository. A former export there is replaced; where other files for
weir apply are, nothing is written. Only their owner can read the files: environment and config of functions are in them.
Values of secrets are not exported: the files name the secrets that have to be set first. For all of the state, secrets included, see weir backup.`,
		Example: `  weir export > weir.yaml
  weir export -f site/
  weir export -o json`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			e, err := c.Export(ctx)
			if err != nil {
				return err
			}
			if a.Structured() && to == "-" {
				return a.Encode(e.Document)
			}
			sections, err := file.Write(e.Document)
			if err != nil {
				return err
			}
			if to != "-" {
				return a.exportTo(to, sections, e.Secrets)
			}
			var out bytes.Buffer
			out.WriteString(exportHead(e.Secrets))
			for _, s := range sections {
				if strings.Contains(s.Name, "-") {
					return fmt.Errorf("this is more than one file can hold (%d MiB): give a directory with -f DIR", file.MaxBytes>>20)
				}
				out.Write(s.Text)
			}
			if out.Len() > file.MaxBytes {
				return fmt.Errorf("this is more than one file can hold (%d MiB): give a directory with -f DIR", file.MaxBytes>>20)
			}
			_, err = a.Stdout.Write(out.Bytes())
			return err
		}),
	}
	cmd.Flags().StringVarP(&to, "file", "f", "-", "directory for the files; - is standard output")
	return cmd
}

func exportHead(secrets []string) string {
	head := exported + " Apply with: weir apply -f\n"
	if len(secrets) > 0 {
		head += "# Values of secrets are not here. Set them before, with weir secret set NAME: " + strings.Join(secrets, ", ") + "\n"
	}
	return head
}

// exportTo writes a file for each section into a directory, if nothing there is anybody else's.
func (a *app) exportTo(dir string, sections []file.Section, secrets []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	former, err := formerExport(dir)
	if err != nil {
		return err
	}
	for _, s := range sections {
		text := exportHead(nil)
		if s.Name == api.KindFunction.Plural() {
			text = exportHead(secrets)
		}
		name := s.Name + ".yaml"
		if err := instance.WriteFile(filepath.Join(dir, name), append([]byte(text), s.Text...)); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		delete(former, name)
	}
	for name := range former { // parts that there are no more
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	fmt.Fprintf(a.Stderr, "exported to %s; weir apply -f %s\n", dir, dir)
	return nil
}

// formerExport finds the files of one. Other files that weir apply -f would read, too, are refused.
func formerExport(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	former := map[string]bool{}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		path := filepath.Join(dir, e.Name())
		ours := false
		if e.Type().IsRegular() {
			head := make([]byte, len(exported))
			f, err := os.Open(path)
			if err != nil {
				return nil, fmt.Errorf("export: %w", err)
			}
			n, _ := f.Read(head) // a short file is none of ours
			f.Close()
			ours = string(head[:n]) == exported
		}
		if !ours {
			return nil, command.WithCode(command.ExitConflict, fmt.Errorf("export: %s is not of weir export: give another directory, or move it away", path))
		}
		former[e.Name()] = true
	}
	return former, nil
}
