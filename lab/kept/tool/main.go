// Command tool keeps finished runs, and writes the figures of the runs that are kept into the pages.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"weir.dev/weir/instance"
	"weir.dev/weir/lab/kept"
	"weir.dev/weir/lab/report"
)

const usage = `usage:
  tool keep [-why TEXT] [-adds RUN] DIR   keep the finished run of a directory
  tool figures TOP                        write the figures into the pages of the repository at TOP
  tool papers TOP                         write the page of what the papers claim and the runs that are kept there say`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kept:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 2 {
		return fmt.Errorf("no command, or no argument: %s", usage)
	}
	switch args[0] {
	case "keep":
		return keep(ctx, args[1:], out)
	case "figures":
		return kept.Generate(args[1])
	case "papers":
		path := filepath.Join(args[1], filepath.FromSlash(papersFile))
		text, err := papers(args[1])
		if err != nil {
			return err
		}
		return instance.Replace(path, text, 0o644)
	}
	return fmt.Errorf("no command %q: %s", args[0], usage)
}

// papersFile is the page of what the papers claim.
const papersFile = kept.Dir + "/" + kept.Papers

// papers is the text of that page.
func papers(top string) ([]byte, error) {
	dir := filepath.Join(top, filepath.FromSlash(kept.Dir))
	all, err := filepath.Glob(filepath.Join(dir, "*", "results.jsonl.gz"))
	if err != nil {
		return nil, err
	}
	var runs []string
	for _, file := range all {
		runs = append(runs, filepath.Dir(file))
	}
	s, err := report.Summarise(runs...)
	if err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(s.Markdown(dir), []byte(dir+string(filepath.Separator)), nil), nil // runs have their names, wherever the repository is
}

// keep is called at the top of the repository.
func keep(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("keep", flag.ContinueOnError)
	o := kept.Order{Top: "."}
	f.StringVar(&o.Why, "why", "", "why the run was made")
	f.StringVar(&o.AddsTo, "adds", "", "the run in "+kept.Dir+" that it repeats or comes after")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 1 || f.Arg(0) == "" {
		return errors.New("want one directory of a finished run: make keep RUN=DIR WHY=\"...\"")
	}
	o.Run = f.Arg(0)
	row, err := kept.Keep(ctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "kept as %s, commit %s\nTo show its figures, name it in %s, then: make generate\n", filepath.Join(kept.Dir, row.Run), row.Commit, filepath.Join(kept.Dir, "figures.yaml"))
	return nil
}
