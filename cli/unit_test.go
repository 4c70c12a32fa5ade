package cli

import (
	"bytes"
	"strings"
	"testing"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/cli/service"
)

func TestUnitRefusesWhatItsCommandDoesNotTake(t *testing.T) {
	unit := func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		code := Main(Options{Stdout: &out, Stderr: &errs, Hooks: service.Hooks{Unit: func(o service.UnitOptions) (string, error) {
			return o.Command + " " + strings.Join(o.Args, " ") + "\n", nil
		}}}, append([]string{"unit"}, args...))
		return out.String(), errs.String(), code
	}
	if out, errs, code := unit("up", "--", "--listen", "none"); out != "up --listen none\n" || code != command.ExitOK {
		t.Errorf("%q %q %d", out, errs, code)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "name the command"},
		{[]string{"status"}, "name the command"},
		{[]string{"up", "x"}, `"x": put the flags of weir up after --`},
		{[]string{"up", "--", "--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"up", "--", "x"}, `"x" is not a flag`},
		{[]string{"agent", "--", "--listen", "none"}, "unknown flag: --listen"},
		{[]string{"up", "--", "--detach"}, "systemd runs it in the foreground"},
		{[]string{"up", "--", "--name", "b"}, "give it before --"},
	} {
		if _, errs, code := unit(c.args...); code != command.ExitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
}
