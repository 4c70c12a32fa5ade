package service

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
)

func (a *commands) checkCommand() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "check [-f FILE...]",
		Short: "Check files offline, or what this host can do",
		Long: `With -f, check files as the server would, without one: syntax, keys, types, values, references, conflicts. The files must
name all that they refer to; "weir apply --plan" checks against what is there. Without -f, check what this host has.`,
		Example: `  weir check
  weir check -f examples/first-chain.yaml
  weir check -f net/ -o json`,
		Args: command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return a.checkHost(cmd)
			}
			return a.checkFiles(files)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "file or directory to check, - for standard input; may be repeated")
	return cmd
}

func (a *commands) checkFiles(files []string) error {
	f, err := a.Load(files)
	if err == nil {
		err = f.Explain(a.Validate(f.Document))
	}
	if err == nil {
		err = f.CheckSecrets()
	}
	if a.Structured() {
		var bad *file.Error
		if err != nil && !errors.As(err, &bad) {
			return err
		}
		report := struct {
			OK       bool          `json:"ok"`
			Problems []api.Problem `json:"problems"`
		}{err == nil, []api.Problem{}}
		if bad != nil {
			for _, p := range bad.Problems {
				report.Problems = append(report.Problems, p.Problem)
			}
		}
		if err := a.Encode(report); err != nil {
			return err
		}
		if bad != nil {
			return command.Silent(command.ExitInvalid)
		}
		return nil
	}
	if err != nil {
		return err
	}
	d := f.Document
	secrets := ""
	if n := len(f.Secrets); n > 0 {
		secrets = ", " + count(n, "secret")
	}
	_, err = fmt.Fprintf(a.Stdout, "ok: %s, %s, %s, %s%s\n", count(len(d.Endpoints), "endpoint"), count(len(d.Functions), "function"),
		count(len(d.Chains), "chain"), count(len(d.Policies), "policy"), secrets)
	return err
}

func count(n int, word string) string {
	switch {
	case n == 1:
		return "1 " + word
	case word == "policy":
		return fmt.Sprintf("%d policies", n)
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (a *commands) checkHost(cmd *cobra.Command) error {
	if a.Features == nil {
		return command.MissingHook("host checks")
	}
	i, err := a.Instance()
	if err != nil {
		return err
	}
	features, missing := a.Features(cmd.Context(), i)
	if a.Structured() {
		if features == nil {
			features = []api.Feature{}
		}
		if err := a.Encode(map[string]any{"ok": missing == nil, "features": features}); err != nil {
			return err
		}
	} else if err := a.PrintTable(featureTable(features)); err != nil {
		return err
	}
	var coded interface{ ExitCode() int }
	if missing != nil && !errors.As(missing, &coded) {
		return command.WithCode(command.ExitForbidden, missing)
	}
	return missing
}

func featureTable(features []api.Feature) command.Table {
	t := command.Table{Head: []string{"FEATURE", "STATE", "DETAIL"}, Coloured: []bool{false, true}}
	for _, f := range features {
		word := "ok"
		if !f.OK {
			word = "missing"
		}
		t.Add(f.Name, word, f.Detail)
	}
	return t
}
