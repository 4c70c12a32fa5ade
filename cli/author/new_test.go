package author

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/image"
)

// run gives the output and the exit code of a command.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	app := &command.App{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Name: "author-t"}
	for _, c := range Commands(app, Options{}) {
		if c.Name() != args[0] {
			continue
		}
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(args[1:])
		err := c.ExecuteContext(t.Context())
		if err == nil {
			return out.String(), 0
		}
		if text := command.ErrorText(t.Context(), err, args[0]); text != "" {
			out.WriteString(text)
		}
		return out.String(), command.ExitCode(t.Context(), err)
	}
	t.Fatal("no command ", args[0])
	return "", 0
}

// A new function builds and passes its tests, out of the box. The build of those of Debian packages takes the essential ones from the cache of builds, if another
// image was built (`make peers`), and fetches the others at first.
func TestNewFunctionsWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes containers (sudo make test)")
	}
	for _, language := range languageNames {
		t.Run(language, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "my-"+language)
			if out, code := run(t, "new", dir, "--lang", language); code != 0 {
				t.Fatalf("code %d: %s", code, out)
			}
			r, err := image.LoadRecipe(dir)
			if err != nil || r.Name != "my-"+language {
				t.Fatalf("recipe of %q: %v", r.Name, err)
			}
			err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(path)
				if bytes.Contains(text, []byte(placeholder)) || bytes.Contains(text, []byte(filesAre)) {
					t.Errorf("%s has a placeholder", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			out, code := run(t, "test", dir)
			if code != 0 || strings.Count(out, "PASS") != 2 {
				t.Errorf("code %d:\n%s", code, out)
			}
			if r.Debian() {
				return // their build takes as long again, for the same command
			}
			// It fails when it is not as expected, and says where.
			in := filepath.Join(dir, casesDir, "blocked", "in.pcap")
			out, code = run(t, "test", dir, "--in", in, "--expect", in, "--config", "port=80", "--timeout", "1s")
			if code != command.ExitDiffers || !strings.Contains(out, "TCP 40000 > 80 SYN") || !strings.Contains(out, "PortBlocked") {
				t.Errorf("code %d:\n%s", code, out)
			}
		})
	}
}

// --update with --case writes what that case expects, and leaves the other cases as they are.
func TestUpdateWritesOnlyTheCaseThatRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("not root: this test makes containers (sudo make test)")
	}
	dir := filepath.Join(t.TempDir(), "mine")
	if out, code := run(t, "new", dir, "--lang", "c"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	path := func(name string) string { return filepath.Join(dir, casesDir, name, fileExpect+".pcap") }
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(path(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	right := read("open")
	for _, name := range []string{"open", "blocked"} { // both expect nothing
		if err := os.WriteFile(path(name), []byte(right[:24]), 0o644); err != nil { // the header of the file
			t.Fatal(err)
		}
	}
	if out, code := run(t, "test", dir, "--case", "open", "--update"); code != 0 || strings.Count(out, "DONE") != 1 {
		t.Fatalf("code %d:\n%s", code, out)
	}
	if out, code := run(t, "test", dir, "--case", "open"); code != 0 || strings.Count(out, "PASS") != 1 {
		t.Errorf("code %d:\n%s", code, out)
	}
	if len(read("open")) < len(right) || read("blocked") != right[:24] {
		t.Errorf("%d bytes of open, want %d; %d bytes of blocked, want 24", len(read("open")), len(right), len(read("blocked")))
	}
}

func TestWhatIsThereIsNotOverwritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, "new", dir); code != 0 { // it is empty
		t.Errorf("code %d: %s", code, out)
	}
	if out, code := run(t, "new", dir); code != command.ExitConflict || !strings.Contains(out, "not empty") {
		t.Errorf("code %d: %s", code, out)
	}
	for _, bad := range []string{"Mine", "my function", "..", "-x-", "9to5", "my..x"} {
		if out, code := run(t, "new", "--lang", "c", "--", filepath.Join(t.TempDir(), bad)); code != command.ExitUsage && bad != ".." {
			t.Errorf("%q: code %d: %s", bad, code, out)
		}
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestUnusableCasesAreRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	if _, code := run(t, "new", dir, "--lang", "c"); code != 0 {
		t.Fatal(code)
	}
	pcap := filepath.Join(dir, casesDir, "open", "in.pcap")
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nothing expected":    {[]string{dir, "--in", pcap}, command.ExitUsage, "want what is expected"},
		"nothing sent":        {[]string{dir, "--expect", pcap}, command.ExitUsage, "want frames to send"},
		"a name has no cases": {[]string{"firewall"}, command.ExitUsage, "and firewall is none"},
		"no capture":          {[]string{dir, "--in", filepath.Join(dir, "image.yaml"), "--expect", pcap}, command.ExitInvalid, "want pcap or pcapng"},
		"no file":             {[]string{dir, "--in", "/nowhere.pcap", "--expect", pcap}, command.ExitInvalid, "no such file"},
		"no such field":       {[]string{dir, "--in", pcap, "--expect", pcap, "--ignore", "mood"}, command.ExitUsage, "want some of checksum, ip-id, mac, ttl"},
		"no folder":           {[]string{"./nowhere", "--in", pcap, "--expect", pcap}, command.ExitNotFound, "no such file"},
		"no such case":        {[]string{dir, "--case", "opne"}, command.ExitNotFound, `has no case "opne": want one of blocked, open`},
		"case and frames":     {[]string{dir, "--case", "open", "--in", pcap, "--expect", pcap}, command.ExitUsage, "--case is for the cases of a folder"},
		"config":              {[]string{dir, "--in", pcap, "--expect", pcap, "--config", "/nowhere.yaml"}, command.ExitInvalid, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, code := run(t, append([]string{"test"}, tt.args...)...); code != tt.code || !strings.Contains(out, tt.says) {
				t.Errorf("code %d, want %d and %q:\n%s", code, tt.code, tt.says, out)
			}
		})
	}
	if err := os.RemoveAll(filepath.Join(dir, casesDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if out, code := run(t, "test", dir); code != command.ExitNotFound || !strings.Contains(out, "has no cases") {
		t.Errorf("code %d: %s", code, out)
	}
}
