// Package author has the commands for those who write functions: weir function test, run, new. They want no daemon. What they do is in the package solo at the
// root.
package author

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/container"
	"weir.dev/weir/image"
	"weir.dev/weir/solo"
)

// Options are what the commands need of the program.
type Options struct {
	Layouts func(dir string) []string // image layouts to search; dir is a further one
}

// author is the commands of one run of the program.
type author struct {
	*command.App
	Options
}

// Commands are those below `weir function`.
func Commands(app *command.App, o Options) []*cobra.Command {
	a := &author{app, o}
	return []*cobra.Command{a.test(), a.run(), a.new()}
}

// flags that all runs of a function have.
type flags struct {
	config, allow, env []string
	runtime, images    string
	mtu                int
}

func (f *flags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringArrayVar(&f.config, "config", nil, "the function's config: a file in YAML or JSON, or KEY=VALUE with VALUE in YAML; may be repeated")
	s.StringArrayVar(&f.env, "env", nil, "NAME=VALUE in the function's environment; may be repeated")
	s.StringArrayVar(&f.allow, "allow", nil, "capability that the image asks for beyond CAP_NET_ADMIN and CAP_NET_RAW; may be repeated")
	s.StringVar(&f.runtime, "runtime", "", "what runs it: native (default), oci, lxc, docker, kvm, ... (weir check lists them)")
	s.Lookup("runtime").Annotations = map[string][]string{command.Once: {"true"}} // the variable is the daemon's, and may name a program
	s.IntVar(&f.mtu, "mtu", solo.DefaultMTU, "MTU of the function's ports")
	command.ImagesFlag(s, &f.images)
}

// prepare sweeps, finds or builds the image, and reads the configuration. end removes what was built.
func (a *author) prepare(ctx context.Context, f flags, what string) (o solo.Options, end func(), err error) {
	end = func() {}
	if os.Geteuid() == 0 {
		swept, err := solo.Sweep(ctx)
		if len(swept) > 0 {
			fmt.Fprintf(a.Stderr, "removed what killed runs had left: %s\n", strings.Join(swept, ", "))
		}
		if err != nil {
			fmt.Fprintf(a.Stderr, "weir: what a killed run left: %s\n", err)
		}
	}
	const least, most = 576, 65535
	if f.mtu < least || f.mtu > most {
		return o, end, command.Usage("--mtu %d: want %d to %d", f.mtu, least, most)
	}
	o = solo.Options{Runtime: f.runtime, Allow: f.allow, Env: f.env, MTU: f.mtu}
	for _, e := range f.env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return o, end, command.Usage("--env %q: want NAME=VALUE", e)
		}
	}
	if o.Config, err = command.ConfigOf(f.config); err != nil {
		return o, end, err
	}
	if o.Image, o.Layouts, end, err = a.find(ctx, f.images, what); err != nil {
		return o, end, coded(err)
	}
	return o, end, nil
}

// recipe tells whether a path is a folder with a recipe.
func recipe(path string) bool {
	_, err := os.Stat(filepath.Join(path, image.RecipeFile))
	return err == nil
}

// find gives an image and the layouts to search for it: its name there, a folder with an OCI layout of one image, or a folder with a recipe, which is built.
func (a *author) find(ctx context.Context, further, what string) (ref string, layouts []string, end func(), err error) {
	end = func() {}
	i, err := a.Instance()
	if err != nil {
		return "", nil, end, err
	}
	info, err := os.Stat(what)
	switch {
	case err == nil && info.IsDir() && recipe(what):
		r, err := image.LoadRecipe(what)
		if err != nil {
			return "", nil, end, err
		}
		dir, err := os.MkdirTemp("", "weir-build-")
		if err != nil {
			return "", nil, end, err
		}
		end = func() { _ = os.RemoveAll(dir) }
		if _, err := r.Build(ctx, dir); err != nil {
			end()
			return "", nil, func() {}, err
		}
		return r.Name + ":" + r.Tag, []string{dir}, end, nil
	case err == nil && info.IsDir():
		if _, err := os.Stat(filepath.Join(what, "oci-layout")); err != nil {
			return "", nil, end, command.WithCode(command.ExitInvalid, fmt.Errorf("%s: want a folder with an %s or an OCI layout, or the name of an image", what, image.RecipeFile))
		}
		here, err := image.In(what)
		if err != nil {
			return "", nil, end, err
		}
		if len(here) != 1 {
			return "", nil, end, command.Usage("%s has %d images: name one, with --images %s (%s)", what, len(here), what, strings.Join(here, ", "))
		}
		return here[0], []string{what}, end, nil
	case err != nil && strings.ContainsAny(what[:min(1, len(what))], "./") && errors.Is(err, fs.ErrNotExist):
		return "", nil, end, command.WithCode(command.ExitNotFound, err)
	}
	if a.Layouts != nil {
		layouts = a.Layouts(further)
	}
	return what, append(layouts, image.OwnLayout(i)), end, nil
}

// coded gives an error the exit code of its kind.
func coded(err error) error {
	switch {
	case errors.Is(err, image.ErrNotFound):
		return command.WithCode(command.ExitNotFound, err)
	case errors.Is(err, image.ErrCorrupt), errors.Is(err, image.ErrRecipe), errors.Is(err, solo.ErrConfig), errors.Is(err, solo.ErrFile), errors.Is(err, solo.ErrCase):
		return command.WithCode(command.ExitInvalid, err)
	case errors.Is(err, solo.ErrForbidden), errors.Is(err, container.ErrMissing):
		return command.WithCode(command.ExitForbidden, err)
	case errors.Is(err, solo.ErrTimeout):
		return command.WithCode(command.ExitTimeout, err)
	}
	return err
}
