package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir.dev/weir/api"
	"weir.dev/weir/cli/command"
)

func (a *app) uiCommand() *cobra.Command {
	var open, signOut bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print a link that opens the web UI",
		Long: `Print a link that opens the web UI (weir up --ui). The link works once, for five minutes, and signs the browser in with the rights of whoever
runs this command: of root by the Unix socket, or of the token given with --token-file. The session outlives a restart of the manager. It ends after twelve
hours, when you sign out, and when the token is deleted, rotated or expires. From another machine: ssh -L 7410:127.0.0.1:7410 HOST, then open the link.`,
		Example: `  weir ui
  weir ui --open
  weir ui --url http://127.0.0.1:7411 --token-file ci.token
  weir ui --sign-out`,
		Args: command.NoArgs(),
		RunE: a.Speaks(func(ctx context.Context, c *api.Client, _ []string) error {
			if signOut {
				if err := c.EndSessions(ctx); err != nil {
					return err
				}
				return a.PrintDone("sessions", "of the web UI", "ended")
			}
			link, err := c.SessionLink(ctx)
			if err != nil {
				return err
			}
			if open {
				return a.browse(ctx, link)
			}
			if a.Structured() {
				return a.Encode(link)
			}
			fmt.Fprintf(a.Stderr, "works once, until %s, with the role %s:\n", link.Expires.Local().Format(time.TimeOnly), link.Role)
			_, err = fmt.Fprintln(a.Stdout, link.URL)
			return err
		}),
	}
	cmd.Flags().BoolVar(&open, "open", false, "open the link in the browser of this desktop, by xdg-open")
	cmd.Flags().BoolVar(&signOut, "sign-out", false, "end all sessions of the web UI, and unused links; needs the role admin")
	cmd.MarkFlagsMutuallyExclusive("open", "sign-out")
	return cmd
}

// readPage is how long a browser has to read the page that leads to the UI.
var readPage = 10 * time.Second

// browse opens a link in the desktop's browser. All users of a machine see the arguments of a process, so the link is in a file that only its user can read.
func (a *app) browse(ctx context.Context, link api.SessionLink) error {
	dir, err := os.MkdirTemp("", "weir-ui-")
	if err != nil {
		return fmt.Errorf("open the browser: %w", err)
	}
	defer os.RemoveAll(dir)
	page := filepath.Join(dir, "open.html")
	text := `<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=` + html.EscapeString(link.URL) + `"><title>Weir</title>`
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		return fmt.Errorf("open the browser: %w", err)
	}
	// Its output goes to a file: a pipe would be waited for as long as the browser has it.
	said, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		return fmt.Errorf("open the browser: %w", err)
	}
	defer said.Close()
	cmd := exec.Command("xdg-open", page) // without ctx: it may be the browser itself, which outlives this command
	cmd.Stdout, cmd.Stderr = said, said
	if uid, gid, ok := sudoUser(); ok { // the desktop is theirs, and a browser of root would be unwise
		if err := errors.Join(os.Chown(page, uid, gid), os.Chown(dir, uid, gid)); err != nil {
			return fmt.Errorf("open the browser: %w", err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("open the browser: %w: open the link yourself (weir ui)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	fmt.Fprintf(a.Stderr, "opening %s\n", link.Address)
	for read := time.After(readPage); ; {
		select {
		case err := <-ended:
			if err != nil {
				out := make([]byte, maxSaid)
				n, _ := said.ReadAt(out, 0) // what there is
				return fmt.Errorf("open the browser: xdg-open: %w %s: open the link yourself (weir ui)", err, command.Printable(string(out[:n])))
			}
			ended = nil // the browser was there already, or is on its own
		case <-read: // it is the browser, perhaps
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// maxSaid bounds what is repeated of xdg-open's output.
const maxSaid = 4 << 10

// sudoUser is who became root by sudo.
func sudoUser() (uid, gid int, ok bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, err2 := strconv.Atoi(os.Getenv("SUDO_GID"))
	return uid, gid, err == nil && err2 == nil && uid > 0
}
