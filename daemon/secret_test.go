package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretKeyFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := strings.Repeat("0f", 16)
	for path, says := range map[string]string{
		filepath.Join(dir, "none"):   "openssl rand",
		write("open", good, 0o644):   "others may have read it",
		write("short", "abc", 0o600): "at least 32",
	} {
		if _, err := secretKey(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
	a, errA := secretKey(write("a", good+"\n", 0o600))
	b, errB := secretKey(write("b", good, 0o400))
	if errA != nil || errB != nil || len(a) != 32 || string(a) != string(b) {
		t.Errorf("the same characters: %x, %v; %x, %v", a, errA, b, errB)
	}
	if none, err := secretKey(""); none != nil || err != nil {
		t.Errorf("no file: %x, %v", none, err)
	}
}
