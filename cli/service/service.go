// Package service has the commands that run Weir on this machine, and what they need of the program: up, down, manager, agent, unit, check.
package service

import (
	"context"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

// Hooks are what the program does for these commands. One that is nil makes its command fail with a message that says so.
type Hooks struct {
	// Up runs the daemon until ctx ends, then returns nil: everything that it made goes on forwarding.
	Up func(ctx context.Context, o UpOptions) error
	// CheckRoot refuses a root directory that is not this instance's to write in, before --detach writes its log there; nil: none.
	CheckRoot func(i instance.Instance) error
	// Agent runs this machine as a host of a manager elsewhere until ctx ends, then returns nil.
	Agent func(ctx context.Context, o AgentOptions) error
	// Unit is the text of a systemd unit.
	Unit func(o UnitOptions) (string, error)
	// Placements are the names that --placement takes; none: all.
	Placements []string
	// Switches are the drivers that --switch takes; none: all.
	Switches []string
	// Runtimes are the container runtimes that --runtime takes; none: all.
	Runtimes []string
	// Down stops a daemon that runs and removes all that the instance made. Nothing there: nil.
	Down func(ctx context.Context, o DownOptions) error
	// Features tells what the host has; the error is about something that Weir cannot do without.
	Features func(ctx context.Context, i instance.Instance) ([]api.Feature, error)
	// Validate is the server's validation of a whole document, offline; default router.Validate.
	Validate func(d api.Document) []api.Problem
}

// commands are those of one run of the program.
type commands struct {
	*command.App
	Hooks
}

// Commands of this package.
func Commands(app *command.App, h Hooks) []*cobra.Command {
	a := &commands{app, h}
	return []*cobra.Command{a.upCommand(), a.downCommand(), a.managerCommand(), a.agentCommand(), a.checkCommand(), a.unitCommand()}
}
