package cli

import (
	"context"
	"slices"
	"strings"

	"weir.dev/weir/api"
	"weir.dev/weir/api/file"
	"weir.dev/weir/cli/command"
)

// noun is what the commands need to know of one kind; nounOf has it for each of the API's types.
type noun interface {
	kind() api.Kind
	aliases() []string
	get(ctx context.Context, c *api.Client, name string) (any, error)
	list(ctx context.Context, c *api.Client, o api.ListOptions) (list any, items []any, err error)
	watch(ctx context.Context, c *api.Client, o api.ListOptions) <-chan change
	// remove is nil for kinds that nobody deletes.
	remove() func(ctx context.Context, c *api.Client, name string) (*api.Operation, error)
	table(wide bool) (command.Table, func(item any) []string)
	meta(item any) *api.Meta
}

// change is a step of a watch.
type change struct {
	kind  api.DeltaType
	items []any
	err   error
}

type column[T any] struct {
	head  string
	wide  bool // only with -o wide
	state bool // coloured
	cell  func(T) string
}

// T embeds api.Meta.
type nounOf[T any] struct {
	k       api.Kind
	other   []string // further names that users may write
	reader  func(*api.Client) api.Reader[T]
	delete  func(ctx context.Context, c *api.Client, name string) (*api.Operation, error)
	columns []column[T]
}

// stored completes a kind that users write: how it is read and deleted.
func stored[T, S any](n nounOf[T], of func(*api.Client) api.Resource[T, S]) noun {
	n.reader = func(c *api.Client) api.Reader[T] { return of(c).Reader }
	n.delete = func(ctx context.Context, c *api.Client, name string) (*api.Operation, error) {
		return of(c).Delete(ctx, name)
	}
	return n
}

func (n nounOf[T]) kind() api.Kind    { return n.k }
func (n nounOf[T]) aliases() []string { return n.other }

func (n nounOf[T]) meta(item any) *api.Meta {
	v := item.(T)
	return any(&v).(interface{ Metadata() *api.Meta }).Metadata()
}

func (n nounOf[T]) get(ctx context.Context, c *api.Client, name string) (any, error) {
	return n.reader(c).Get(ctx, name)
}

func (n nounOf[T]) list(ctx context.Context, c *api.Client, o api.ListOptions) (any, []any, error) {
	l, err := n.reader(c).List(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	if l.Items == nil {
		l.Items = []T{}
	}
	return l, anys(l.Items), nil
}

func (n nounOf[T]) watch(ctx context.Context, c *api.Client, o api.ListOptions) <-chan change {
	out := make(chan change)
	go func() {
		defer close(out)
		for d := range n.reader(c).Watch(ctx, 0, o) {
			step := change{kind: d.Type, err: d.Err}
			switch d.Type {
			case api.DeltaReset:
				step.items = anys(d.Items)
			case api.DeltaPut, api.DeltaDelete:
				step.items = []any{d.Object}
			}
			select {
			case out <- step:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func (n nounOf[T]) remove() func(context.Context, *api.Client, string) (*api.Operation, error) {
	return n.delete
}

func (n nounOf[T]) table(wide bool) (command.Table, func(any) []string) {
	var t command.Table
	var cells []func(T) string
	for _, c := range n.columns {
		if c.wide && !wide {
			continue
		}
		t.Head = append(t.Head, c.head)
		t.Coloured = append(t.Coloured, c.state)
		cells = append(cells, c.cell)
	}
	return t, func(item any) []string {
		row := make([]string, len(cells))
		for i, cell := range cells {
			row[i] = cell(item.(T))
		}
		return row
	}
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

// nounNamed finds a kind by its singular, plural or short name.
func nounNamed(word string) (noun, error) {
	var words []string
	for _, n := range nouns() {
		names := append([]string{string(n.kind()), n.kind().Plural()}, n.aliases()...)
		if slices.Contains(names, strings.ToLower(word)) {
			return n, nil
		}
		words = append(words, names[:2]...)
	}
	hint := file.Suggest(word, words)
	if hint == "" {
		hint = "want one of " + strings.Join(plurals(), ", ")
	}
	return nil, command.Usage("unknown kind %q (%s)", word, hint)
}

// split takes "function/fw", as Weir itself writes it, for "function fw"; all of it has to be of one kind.
func split(args []string) ([]string, error) {
	if len(args) == 0 || !strings.Contains(args[0], "/") {
		return args, nil
	}
	var out []string
	for _, arg := range args {
		kind, name, ok := strings.Cut(arg, "/")
		if !ok || name == "" {
			return nil, command.Usage("%q: want KIND/NAME, as before it", arg)
		}
		if out == nil {
			out = []string{kind}
		}
		if kind != out[0] {
			return nil, command.Usage("%q: want one kind at a time, here %s", arg, out[0])
		}
		out = append(out, name)
	}
	return out, nil
}

func plurals() []string {
	var words []string
	for _, n := range nouns() {
		words = append(words, n.kind().Plural())
	}
	return words
}
