package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weir.dev/weir/api"
)

// SecretSource says where the value of a secret is. A document does not hold it: documents are shown, kept in repositories and sent around.
type SecretSource struct {
	File string `json:"file,omitempty"` // a path, from the document's directory
	Env  string `json:"env,omitempty"`  // a variable in the environment of whoever applies the document
}

const secretHint = "write where the value is, {file: PATH} or {env: VARIABLE}: it does not belong in this file"

// secretPath tells what may be, or be beside, a value that somebody wrote into a document. No message quotes that.
func secretPath(path string) bool { return path == "secrets" || strings.HasPrefix(path, "secrets.") }

// shownKey is a key as messages have it. What stands for a secret's source may be its value in braces.
func shownKey(path, key string) string {
	if strings.HasPrefix(path, "secrets.") && key != "file" && key != "env" && key != "value" {
		return "..."
	}
	return key
}

// inSecrets tells the same of a line of text that is no valid YAML, so that there is no path: what begins at the margin decides, and in a document that is
// one { } all lines after the word.
func (d *decoder) inSecrets(line int) bool {
	var section string
	var word bool
	for _, text := range d.lines[:min(max(line, 0), len(d.lines))] {
		if text != "" && !strings.ContainsRune(" \t#-\r", rune(text[0])) {
			section = text
		}
		word = word || strings.Contains(text, "secrets")
	}
	return word && (strings.Contains(section, "secrets") || strings.HasPrefix(section, "{"))
}

// CheckSecrets checks what the files say of secrets, without reading a value.
func (f *File) CheckSecrets() error {
	var problems []api.Problem
	for _, name := range sortedKeys(f.Secrets) {
		err := api.CheckName(name)
		if err == nil {
			err = f.Secrets[name].check()
		}
		if err != nil {
			problems = append(problems, api.Problem{Path: "secrets." + name, Message: err.Error()})
		}
	}
	return f.Explain(problems)
}

func (s SecretSource) check() error {
	if (s.File == "") == (s.Env == "") {
		return errors.New("want one of file and env: where the value is")
	}
	return nil
}

// Values reads the values of the secrets. nil: the files have no section of secrets.
func (f *File) Values() (map[string]api.SecretRequest, error) {
	if f.Secrets == nil {
		return nil, nil
	}
	values := map[string]api.SecretRequest{}
	var problems []api.Problem
	for _, name := range sortedKeys(f.Secrets) {
		v, err := f.Secrets[name].read(f.dirOf("secrets." + name))
		if err != nil {
			problems = append(problems, api.Problem{Path: "secrets." + name, Message: err.Error()})
			continue
		}
		values[name] = api.SecretRequest{Value: v}
	}
	return values, f.Explain(problems)
}

// dirOf is the directory of the document in which a path stands.
func (f *File) dirOf(path string) string {
	at, ok := f.Locate(path)
	if _, err := os.Stat(at.File); !ok || err != nil { // standard input
		return "."
	}
	return filepath.Dir(at.File)
}

// secretPatience is how long a program may take to write a secret into a pipe.
const secretPatience = 10 * time.Second

func (s SecretSource) read(dir string) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Env != "" {
		v, ok := os.LookupEnv(s.Env)
		if !ok || v == "" {
			return nil, fmt.Errorf("the environment has no variable %s, or an empty one", s.Env)
		}
		return bounded([]byte(v), "variable "+s.Env)
	}
	path := s.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO that nobody writes is empty
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	defer in.Close()
	_ = in.SetReadDeadline(time.Now().Add(secretPatience)) // a plain file has none, and needs none
	info, err := in.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("every user of this machine may open %s (mode %04o): chmod o= %s", path, info.Mode().Perm(), path)
	}
	v, err := io.ReadAll(io.LimitReader(in, api.MaxSecret+1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("nobody closed the pipe %s within %v: want a file, or a program that writes the secret and ends", path, secretPatience)
	}
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	return bounded(v, path)
}

func bounded(v []byte, where string) ([]byte, error) {
	if n := len(v); n < 1 || n > api.MaxSecret {
		return nil, fmt.Errorf("%s holds %d bytes or more: want 1 to %d", where, n, api.MaxSecret)
	}
	return v, nil
}
