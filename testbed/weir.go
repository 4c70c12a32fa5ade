package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
)

// weir is a command of the program that does not run as a node: token, down.
func (o *Options) weir(ctx context.Context, p plan, node string, args ...string) *exec.Cmd {
	argv := append([]string{o.Program}, args...)
	return p.command(ctx, "", node, append(argv, "--name", p.instance(node), "--root", p.root(node))...)
}

// checkInstance refuses a manager whose name is another Weir's on this machine.
func (p plan) checkInstance() error {
	i, err := instance.New(p.Name, "")
	if err != nil {
		return err
	}
	for _, dir := range []string{i.Run, i.Root} {
		if _, err := os.Stat(dir); err == nil {
			return fmt.Errorf("a Weir is called %s already (%s is there): give the testbed another name with --name: %w", p.Name, dir, ErrConflict)
		}
	}
	return nil
}

// startManager starts it and waits until its API answers.
func (o *Options) startManager(ctx context.Context, p plan) error {
	argv := []string{o.Program, "manager", "--name", p.instance(NodeManager), "--root", p.root(NodeManager), "--listen", "none"}
	if len(p.Switches) > 0 {
		address := fmt.Sprintf("%s:%d", managerAddress, openflowPort)
		if !p.openflowTLS() {
			address = "tcp:" + address
		}
		argv = append(argv, "--openflow", address)
	}
	if len(p.Agents) > 0 {
		argv = append(argv, "--agents", fmt.Sprintf("%s:%d", managerAddress, agentsPort))
	}
	m := p.Manager
	if m.Underlay != "" {
		argv = append(argv, "--underlay", m.Underlay)
	}
	if m.Placement != "" {
		argv = append(argv, "--placement", m.Placement)
	}
	if m.DefaultForwarding != nil && !*m.DefaultForwarding {
		argv = append(argv, "--default-forwarding=false")
	}
	c, err := p.start(NodeManager, argv...)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.Close()
	return await(ctx, o.Timeout, "start manager", func() (bool, error) {
		select {
		case err := <-ended:
			return true, fmt.Errorf("start manager: it ended (%v): its log ends with\n%s", err, p.tail(NodeManager))
		default:
		}
		err := client.Health(ctx)
		return err == nil, err
	})
}

// client speaks to the manager.
func (p plan) client() (*api.Client, error) {
	i, err := instance.New(p.instance(NodeManager), p.root(NodeManager))
	if err != nil {
		return nil, err
	}
	return api.Dial(api.Options{Socket: i.Socket()})
}

// writeToken makes a join token for an agent that starts now; one that has joined before has a certificate and does not need it.
func (o *Options) writeToken(ctx context.Context, p plan, node string) error {
	out, err := run(o.weir(ctx, p, NodeManager, "token", "create", "--ttl", "15m", "--host", node, "--replace"))
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	if err := os.WriteFile(p.token(node), []byte(strings.TrimSpace(out)+"\n"), 0o600); err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	return nil
}

// openflowTLS tells whether switches connect with TLS. Without our manager they wait for somebody's controller, as it likes.
func (p plan) openflowTLS() bool { return p.Manager != nil && p.Manager.OpenFlow != "plain" }

// certifySwitches makes the certificate that the process of all switches presents.
func (o *Options) certifySwitches(ctx context.Context, p plan) error {
	args := []string{"switch", "cert", "--out", p.switchCert()}
	ids := p.dpids()
	for _, name := range sorted(p.Switches) {
		args = append(args, fmt.Sprintf("%x", ids[name]))
	}
	if _, err := run(o.weir(ctx, p, NodeManager, args...)); err != nil {
		return fmt.Errorf("make the switches' certificate: %w", err)
	}
	return nil
}

// startAgent starts one; it joins by itself.
func (o *Options) startAgent(ctx context.Context, p plan, node string) error {
	if err := o.writeToken(ctx, p, node); err != nil {
		return err
	}
	argv := []string{o.Program, "agent", "--name", p.instance(node), "--root", p.root(node), "--host", node,
		"--manager", fmt.Sprintf("https://%s:%d", managerAddress, agentsPort), "--token-file", p.token(node),
		"--underlay-address", p.address(node).String()}
	if s := p.Agents[node].Switch; s != "" {
		argv = append(argv, "--switch", s)
	}
	if p.uplink(node) {
		argv = append(argv, "--uplink", "eth1")
	}
	c, err := p.start(node, argv...)
	if err == nil {
		go func() { _ = c.Wait() }() // its log and list say how it is
	}
	return err
}

// endedAgain is how often is looked whether agents that are waited for run at all.
const endedAgain = 500 * time.Millisecond

// awaitNodes waits until the manager knows all switches and agents.
func (o *Options) awaitNodes(ctx context.Context, p plan) error {
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.Close()
	look := time.Now().Add(endedAgain)
	return await(ctx, o.Timeout, "switches and agents of testbed "+p.Name, func() (bool, error) {
		missing, err := p.missing(ctx, client)
		if err == nil && len(missing) > 0 {
			err = errors.New(strings.Join(missing, ", "))
		}
		if err == nil {
			return true, nil
		}
		if time.Now().Before(look) {
			return false, err
		}
		look = time.Now().Add(endedAgain)
		up, unknown := p.running()
		for _, node := range sorted(p.Agents) { // the first that is not running tells why
			if unknown == nil && !up[node] {
				return true, fmt.Errorf("%w: agent %s ended; its log ends with\n%s", err, node, p.tail(node))
			}
		}
		return false, err
	})
}

// missing lists the nodes that are not ready in the manager's eyes.
func (p plan) missing(ctx context.Context, c *api.Client) ([]string, error) {
	var out []string
	if len(p.Agents) > 0 {
		hosts, err := c.Hosts().List(ctx, api.ListOptions{})
		if err != nil {
			return nil, err
		}
		ready := map[string]api.HostState{}
		for _, h := range hosts.Items {
			ready[h.Name] = h.Status.State
		}
		for _, n := range sorted(p.Agents) {
			if ready[n] != api.HostReady {
				out = append(out, fmt.Sprintf("agent %s is %s", n, orAbsent(string(ready[n]))))
			}
		}
	}
	if len(p.Switches) > 0 {
		switches, err := c.Switches().List(ctx, api.ListOptions{})
		if err != nil {
			return nil, err
		}
		state := map[string]api.SwitchState{}
		for _, s := range switches.Items {
			state[s.Name] = s.Status.State
		}
		for _, n := range sorted(p.Switches) {
			if state[n] != api.SwitchConnected {
				out = append(out, fmt.Sprintf("switch %s is %s", n, orAbsent(string(state[n]))))
			}
		}
	}
	return out, nil
}

func orAbsent(state string) string {
	if state == "" {
		return "absent"
	}
	return state
}

// stopWeir removes what manager and agents made outside the testbed's directories: containers, BPF pins, cgroups, mounts.
func (o *Options) stopWeir(ctx context.Context, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	nodes := sorted(p.Agents)
	if p.Manager != nil {
		nodes = append(nodes, NodeManager)
	}
	errs := make(chan error, len(nodes))
	slots := make(chan struct{}, 4)
	for _, node := range nodes {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs <- o.stopOne(ctx, p, node)
		}()
	}
	var all []error
	for range nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func (o *Options) stopOne(ctx context.Context, p plan, node string) error {
	i, err := instance.New(p.instance(node), p.root(node))
	if err != nil {
		return err
	}
	_, errRun := os.Stat(i.Run)
	_, errRoot := os.Stat(i.Root)
	if errRun != nil && errRoot != nil {
		return nil // it never ran
	}
	c := exec.CommandContext(ctx, o.Program, "down", "--name", i.Name, "--root", i.Root)
	c.Env = p.environment("")
	if _, err := run(c); err != nil {
		return fmt.Errorf("take %s down: %w", filepath.Base(node), err)
	}
	return nil
}
