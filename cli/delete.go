package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) deleteCommand() *cobra.Command {
	var files []string
	var wait, ignore bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete (KIND NAME... | -f FILE...)",
		Short: "Delete objects by name, or all that files name",
		Long: `Delete endpoints, functions, chains or policies, or a host that is lost and will not come back. What another object
uses is not deleted: delete the user first, or both with -f. With -f, or with more than 100 names, all is deleted in one step, or, if anything is in use,
nothing.`,
		Example: `  weir delete policy guests
  weir delete function fw w1 --timeout 10s
  weir delete host h3
  weir delete -f examples/first-chain.yaml`,
		Args:              command.WantArgs(0, -1, ""),
		ValidArgsFunction: a.completeObjects([]string{"endpoints", "functions", "chains", "policies", "hosts"}),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, args []string) error {
			one, all, err := a.toDelete(args, files)
			if err != nil {
				return err
			}
			ctx, cancel := command.Ending(ctx, timeout, "delete")
			defer cancel()
			if len(files) > 0 {
				_, err := a.deleteAll(ctx, c, all, wait)
				return err
			}
			if len(one.names) > eachByItself {
				return a.deleteMany(ctx, c, one, wait, ignore)
			}
			return a.deleteBatch(ctx, c, one, wait, ignore)
		}),
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "file", "f", nil, "delete what this file or directory names, - for standard input; may be repeated")
	flags.BoolVar(&ignore, "ignore-not-found", false, "an object that is not there is no failure; always so with -f")
	flags.BoolVar(&wait, "wait", true, "wait until they are gone")
	flags.DurationVar(&timeout, "timeout", command.WaitDefault, "how long to wait; 0 is for ever")
	return cmd
}

// batch is objects of one kind.
type batch struct {
	n     noun
	names []string
}

// toDelete is what the arguments name, or all that files name.
func (a *app) toDelete(args, files []string) (one batch, all api.DeleteRequest, err error) {
	if len(files) == 0 {
		one, err = namedBatch(args)
		return one, all, err
	}
	if len(args) > 0 {
		return one, all, command.Usage("want either a kind with names or -f FILE, not both")
	}
	f, err := a.Load(files)
	if err != nil {
		return one, all, err
	}
	d := f.Document
	return one, api.DeleteRequest{Policies: slices.Sorted(maps.Keys(d.Policies)), Chains: slices.Sorted(maps.Keys(d.Chains)), Functions: slices.Sorted(maps.Keys(d.Functions)), Endpoints: slices.Sorted(maps.Keys(d.Endpoints)), Secrets: slices.Sorted(maps.Keys(f.Secrets))}, nil
}

func namedBatch(args []string) (batch, error) {
	args, err := split(args)
	if err != nil {
		return batch{}, err
	}
	if len(args) < 2 {
		return batch{}, command.Usage("want a kind and at least one name, or -f FILE")
	}
	n, err := nounNamed(args[0])
	if err == nil && n.remove() == nil {
		err = command.Usage("%s cannot be deleted; want endpoints, functions, chains, policies or hosts", n.kind().Plural())
	}
	return batch{n, args[1:]}, err
}

// deleteAll deletes in one step, then watches until all of it is gone. It returns the names of what was there.
func (a *app) deleteAll(ctx context.Context, c *api.Client, r api.DeleteRequest, wait bool) (map[string]bool, error) {
	result, err := c.Delete(ctx, r)
	if err != nil {
		return nil, err
	}
	gone := map[string]bool{}
	for _, x := range result.Changes {
		gone[x.Name] = true
		if !a.Structured() {
			fmt.Fprintf(a.Stdout, "- %s/%s\n", x.Kind, x.Name)
		}
	}
	if a.Structured() {
		if err := a.Encode(result); err != nil {
			return nil, err
		}
	}
	if !wait {
		return gone, nil
	}
	return gone, a.waitFor(ctx, c, api.Document{}, result.Changes)
}

// eachByItself is how many names are deleted each by itself. More would take long, and more operations than the manager keeps.
const eachByItself = 100

// deleteMany deletes many objects of one kind in one step.
func (a *app) deleteMany(ctx context.Context, c *api.Client, b batch, wait, ignore bool) error {
	var r api.DeleteRequest
	switch b.n.kind() {
	case api.KindPolicy:
		r.Policies = b.names
	case api.KindChain:
		r.Chains = b.names
	case api.KindFunction:
		r.Functions = b.names
	case api.KindEndpoint:
		r.Endpoints = b.names
	default: // hosts
		return a.deleteBatch(ctx, c, b, wait, ignore)
	}
	gone, err := a.deleteAll(ctx, c, r, wait)
	if err != nil || ignore {
		return err
	}
	var failed []error
	for _, name := range b.names {
		if !gone[name] {
			failed = append(failed, fmt.Errorf("%s %q: %w", b.n.kind(), name, api.ErrNotFound))
		}
	}
	return errors.Join(failed...)
}

func (a *app) deleteBatch(ctx context.Context, c *api.Client, b batch, wait, ignore bool) error {
	var ops []api.Operation
	var failed []error
	for _, name := range b.names {
		op, err := b.n.remove()(ctx, c, name)
		if ignore && errors.Is(err, api.ErrNotFound) {
			continue
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if op != nil {
			ops = append(ops, *op)
		}
		if !a.Structured() {
			fmt.Fprintf(a.Stdout, "- %s/%s\n", b.n.kind(), name)
		}
	}
	if a.Structured() {
		for _, op := range ops {
			if err := a.EncodeItem(op); err != nil {
				return err
			}
		}
	}
	if wait {
		failed = append(failed, a.follow(ctx, c, ops))
	}
	return errors.Join(failed...)
}
