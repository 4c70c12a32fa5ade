package entry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/steps"
	"weir.dev/weir/instance"
	"weir.dev/weir/portkind"
)

// lines are the first ones that programs say of themselves.
var lines kernel.PerFile[string]

const versionTimeout = 10 * time.Second

// Program is what an engine over a Tool calls.
type Program struct {
	Runtime string   // the engine's name
	Name    string   // the program's
	Absent  string   // what to say where there is no such program
	Version []string // arguments by which it says its version
	// Judge takes what the first line says, for the version and what is wrong with it, "" nothing.
	Judge  func(line string) (version, wrong string)
	Any    bool // version will do: Open does not ask for it
	Userns bool // see container.About
	Note   string
}

// Look tells whether the program is here and will do, and its path.
func (p Program) Look(ctx context.Context) (container.About, string) {
	a := container.About{Name: p.Runtime, Ports: []portkind.Kind{portkind.Veth}, Userns: p.Userns, Note: p.Note}
	path, err := p.find()
	if err != nil {
		a.Missing = err.Error()
		return a, ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	line, err := lines.Of(path, func() (string, error) {
		return kernel.FirstLine(exec.CommandContext(ctx, path, p.Version...))
	})
	if a.Version, a.Missing = p.Judge(line); err != nil {
		a.Missing = fmt.Sprintf("%s %s: %v", p.Name, strings.Join(p.Version, " "), err)
	}
	return a, path
}

func (p Program) find() (string, error) {
	path, err := exec.LookPath(p.Name)
	if err != nil {
		return "", errors.New(p.Absent)
	}
	return path, Supported()
}

// Open opens the instance's containers; see kernel.New. To remove them it can do without the program.
func (p Program) Open(ctx context.Context, inst instance.Instance, o kernel.Options, remove bool, engine func(t *Tool, path string) kernel.Engine) (*kernel.Runtime, error) {
	path, err := p.find()
	switch {
	case remove:
		path, err = cmp.Or(path, p.Name), nil
	case err == nil && !p.Any:
		if a, _ := p.Look(ctx); a.Missing != "" {
			err = errors.New(a.Missing)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", p.Runtime, err)
	}
	r, err := kernel.New(ctx, inst, p.Runtime, o, func(h *kernel.Home) (kernel.Engine, error) {
		return engine(&Tool{steps.Maker{Home: h, Dir: ownDir}, p.Name}, path), nil
	})
	if err != nil {
		return nil, fmt.Errorf("container runtime %s: %w", p.Runtime, err)
	}
	return r, nil
}
