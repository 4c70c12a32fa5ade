package guest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if found, _ := filepath.Glob("../../build/vm/kern/boot/vmlinuz-*-cloud-amd64"); len(found) > 0 && os.Getenv("WEIR_KVM_KERNEL") == "" { // make peers
		os.Setenv("WEIR_KVM_KERNEL", found[0])
	}
	if os.Getenv(leaves) != "" {
		leave()
		os.Exit(0)
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "guest: these tests make containers and network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A corpus is the same on every machine, and as large as it is asked to be.
func TestCorpusIsTheSameEverywhere(t *testing.T) {
	var a, b bytes.Buffer
	if err := writeCorpus(&a, corpusSeed, mib+1); err != nil {
		t.Fatal(err)
	}
	if err := writeCorpus(&b, corpusSeed, 1000); err != nil {
		t.Fatal(err)
	}
	if a.Len() != mib+1 || b.Len() != 1000 || !bytes.HasPrefix(a.Bytes(), b.Bytes()) {
		t.Errorf("%d and %d bytes, want %d and its beginning of 1000", a.Len(), b.Len(), mib+1)
	}
	sum := sha256.Sum256(a.Bytes())
	if got := hex.EncodeToString(sum[:8]); got != corpusSum {
		t.Errorf("the corpus has changed: its sum is %s, it was %s: figures of former runs are of another one", got, corpusSum)
	}
}

const corpusSum = "e94ec46f0ceb2177"

// What a crash has left of a corpus is made anew, and what is whole is left as it is.
func TestHalfACorpusIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	for _, left := range []string{"corpus-1", "corpus-1.half"} {
		if err := os.WriteFile(filepath.Join(dir, left), []byte("half a cor"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name, err := corpus(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(filepath.Join(dir, name))
	if err != nil || first.Size() != mib {
		t.Fatalf("%v, %v", first, err)
	}
	if _, err := corpus(dir, 1); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(filepath.Join(dir, name)); err != nil || !again.ModTime().Equal(first.ModTime()) {
		t.Errorf("a whole corpus was made again: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// A disk that is too small is told before anything is written.
func TestADiskThatIsTooSmall(t *testing.T) {
	dir := t.TempDir()
	err := room(dir, 1<<60, "a file")
	if !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), "disk too small: "+dir+" has ") {
		t.Errorf("%v", err)
	}
	if err := room(dir, 1, "a file"); err != nil {
		t.Errorf("a byte: %v", err)
	}
}
