package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func debianRecipe(t *testing.T, name string, more string) Recipe {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("name: %s\ntag: \"1\"\nentrypoint: [/usr/bin/true]\nbase: debian\n%s", name, more)
	must(t, os.WriteFile(filepath.Join(dir, RecipeFile), []byte(text), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o644))
	r, err := LoadRecipe(dir)
	must(t, err)
	return r
}

// Images of Debian's packages, from this machine's mirror: they run, their base is shared, and what was built once is built again without a network.
func TestDebianPackages(t *testing.T) {
	t.Setenv("WEIR_BUILD_CACHE", filepath.Join(t.TempDir(), "cache"))
	layout := filepath.Join(t.TempDir(), "layout")
	init := debianRecipe(t, "init", "packages: [tini]\nfiles: [{to: /usr/bin/mine, from: file}]\n")
	first := built(t, layout, init)
	bare := debianRecipe(t, "bare", "files: [{to: /opt/mine, from: file}]\n")
	built(t, layout, bare)
	s := newStore(t, layout)
	a, err := s.Resolve("init")
	must(t, err)
	b, err := s.Resolve("bare")
	must(t, err)
	if len(a.Layers) != 3 || len(b.Layers) != 2 || a.Layers[0] != b.Layers[0] {
		t.Errorf("layers %v and %v: want a base that both have, the packages, the files", a.Layers, b.Layers)
	}
	root, err := s.Mount(t.Context(), "init")
	must(t, err)
	out, err := exec.Command("chroot", root, "/usr/bin/tini", "-s", "--", "/bin/sh", "-c", "cat /usr/bin/mine; . /etc/os-release; echo $ID; ls /dev /proc /etc/hostname /etc/apt/sources.list 2>&1").CombinedOutput()
	if text := string(out); !strings.HasPrefix(text, "minedebian\n") || strings.Count(text, "No such file") != 2 {
		t.Errorf("in the image: %s, %v", text, err)
	}

	// The essential packages were installed twice, and came out the same: else the layer of packages had some of them, too.
	e, err := s.resolve("init")
	must(t, err)
	f, err := openLayer(blobPath(layout, e.layers[1].Digest))
	must(t, err)
	defer f.Close()
	plain, err := decompress(e.layers[1].MediaType, f)
	must(t, err)
	for _, n := range names(t, plain) {
		if n[0] != '5' && !strings.Contains(n, "tini") && !strings.Contains(n, " var/lib/dpkg/status ") {
			t.Errorf("the layer of packages has %.200s", n)
		}
	}

	// Without a network: nothing of it is asked for.
	tools := t.TempDir()
	apt, err := exec.LookPath("apt-get")
	must(t, err)
	must(t, os.Symlink(apt, filepath.Join(tools, "apt-get")))
	t.Setenv("PATH", tools)
	if again := built(t, layout, init); again != first {
		t.Errorf("from the cache it is %s, it was %s", again, first)
	}
	_, err = debianRecipe(t, "more", "packages: [tini, nano]\n").Build(t.Context(), layout)
	if err == nil || !strings.Contains(err.Error(), "mmdebstrap is missing: apt-get install mmdebstrap") {
		t.Errorf("without mmdebstrap: %v", err)
	}
}

func TestSourcesOfDebian(t *testing.T) {
	targets := `http://deb.example/debian bookworm non-free
http://deb.example/debian bookworm main
http://deb.example/debian bookworm-updates main
http://deb.example/debian bookworm-backports main
http://sec.example/debian-security bookworm-security main
https://others.example/apt stable main
https://others.example/apt trixie main
`
	if diff := cmp.Diff([]string{
		"deb http://deb.example/debian bookworm main non-free", "deb http://deb.example/debian bookworm-updates main", "deb http://sec.example/debian-security bookworm-security main",
	}, sources(targets, "bookworm", "bookworm")); diff != "" {
		t.Error(diff)
	}
	if got := sources(targets, "bookworm", "trixie"); len(got) != 3 || !slices.Contains(got, "deb http://sec.example/debian-security trixie-security main") {
		t.Errorf("another release: %v", got)
	}
	if got := sources(targets, "sid", "sid"); got != nil {
		t.Errorf("a release without sources: %v", got)
	}
}

func TestWhyPackagesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"I: x\nReading package lists...\nE: Unable to locate package nosuch\nE: setup failed: E: apt-get failed\nI: removing\nE: mmdebstrap failed to run\n": "E: Unable to locate package nosuch",
		"The following packages have unmet dependencies:\n a : Depends: b\nE: Unable to correct problems\nE: mmdebstrap failed to run\n":                     "The following packages have unmet dependencies:\n a : Depends: b\nE: Unable to correct problems\nE: mmdebstrap failed to run\nE: Unable to correct problems",
		"one\ntwo\n": "one\ntwo",
	} {
		if got := why(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestReleaseOfThisMachine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "os-release")
	for text, want := range map[string]string{
		"ID=debian\nVERSION_CODENAME=trixie\n":    "debian trixie",
		"ID=\"ubuntu\"\nVERSION_CODENAME=noble\n": "ubuntu noble",
		"ID=other\n": "other ",
	} {
		must(t, os.WriteFile(file, []byte(text), 0o644))
		if id, name, err := release(file); id+" "+name != want || err != nil {
			t.Errorf("%q: %q %q, %v: want %q", text, id, name, err, want)
		}
	}
	must(t, os.WriteFile(file, []byte("ID=debian\n"), 0o644))
	if _, _, err := release(file); err == nil || !strings.Contains(err.Error(), "no VERSION_CODENAME") {
		t.Errorf("Debian without a name: %v", err)
	}
}

// TestDebianElsewhere: on Ubuntu the packages are Debian's all the same, and the keys, too. With this machine's mirror a root is made of such sources.
func TestDebianElsewhere(t *testing.T) {
	if _, err := elsewhere("", filepath.Join(t.TempDir(), "none.gpg"), ""); err == nil || !strings.Contains(err.Error(), "apt-get install debian-archive-keyring") {
		t.Errorf("without keys: %v", err)
	}
	d, err := elsewhere("", debianKeyring, "")
	must(t, err)
	if d.suite != debianSuite || len(d.sources) != 3 || !strings.HasPrefix(d.sources[0], "deb [signed-by="+debianKeyring+"] "+debianMirror+" ") {
		t.Errorf("%+v", d)
	}
	here, err := findDebian(t.Context(), "")
	must(t, err)
	i := slices.IndexFunc(here.sources, func(s string) bool { return strings.Fields(s)[2] == here.suite })
	if i < 0 {
		t.Fatalf("no source of %s: %q", here.suite, here.sources)
	}
	d, err = elsewhere(here.suite, debianKeyring, strings.Fields(here.sources[i])[1])
	must(t, err)
	root := filepath.Join(t.TempDir(), "root.tar")
	must(t, d.install(t.Context(), nil, root, t.TempDir()))
	if info, err := os.Stat(root); err != nil || info.Size() < 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
}

// entry of an archive in a test.
type archived struct {
	name, content, link string
	mode                int64
}

func archiveOf(t *testing.T, entries ...archived) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), Linkname: e.link, Typeflag: tar.TypeReg}
		switch {
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		case strings.HasPrefix(e.link, "="):
			h.Typeflag, h.Linkname = tar.TypeLink, e.link[1:]
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		}
		must(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(e.content))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func names(t *testing.T, archive io.Reader) (out []string) {
	t.Helper()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		out = append(out, fmt.Sprintf("%c %s %o %s%s", h.Typeflag, h.Name, h.Mode, content, h.Linkname))
	}
}

// A layer has what differs from the one below it, with its directories; what is gone is marked; links stay within it.
func TestLayerOfADifference(t *testing.T) {
	c := &buildCache{t.TempDir(), maxBuildCache}
	below := []archived{{"./", "", "", 0o755}, {"./etc/", "", "", 0o755}, {"./etc/gone", "x", "", 0o644}, {"./etc/hostname", "secret", "", 0o644}, {"./etc/same", "s", "", 0o644},
		{"./old/", "", "", 0o755}, {"./old/file", "x", "", 0o644}, {"./root/", "", "", 0o700}, {"./usr/", "", "", 0o755}, {"./usr/perl", "p", "", 0o755}}
	base, err := c.layer(t.Context(), "base", "", false, func(to *os.File, _ string) error {
		return writeDelta(t.Context(), nil, file(t, archiveOf(t, below...)), to)
	})
	must(t, err)
	plain, err := base.Uncompressed()
	must(t, err)
	if diff := cmp.Diff([]string{"5 etc/ 755 ", "0 etc/gone 644 x", "0 etc/same 644 s", "5 old/ 755 ", "0 old/file 644 x", "5 root/ 700 ", "5 usr/ 755 ", "0 usr/perl 755 p",
		"5 etc/weir/ 755 ", "0 etc/weir/config.json 644 "}, names(t, plain)); diff != "" {
		t.Error(diff)
	}
	must(t, plain.Close())
	above := file(t, archiveOf(t, archived{"./", "", "", 0o755}, archived{"./dev/", "", "", 0o755}, archived{"./dev/null", "", "", 0o644}, archived{"./etc/", "", "", 0o755}, archived{"./etc/same", "s", "", 0o644},
		archived{"./root/", "", "", 0o700}, archived{"./root/new", "n", "", 0o600}, archived{"./usr/", "", "", 0o755}, archived{"./usr/perl", "p", "", 0o755}, archived{"./usr/perl5", "", "=./usr/perl", 0o755},
		archived{"./usr/sh", "", "perl", 0o777}))
	var out bytes.Buffer
	must(t, writeDelta(t.Context(), base, above, &out))
	if diff := cmp.Diff([]string{"5 dev/ 755 ", "5 root/ 700 ", "0 root/new 600 n", "5 usr/ 755 ", "0 usr/perl 755 p", "1 usr/perl5 755 usr/perl", "2 usr/sh 777 perl", "0 etc/.wh.gone 644 ", "0 .wh.old 644 "}, names(t, &out)); diff != "" {
		t.Error(diff)
	}
}

func file(t *testing.T, content []byte) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "archive")
	must(t, os.WriteFile(f, content, 0o600))
	return f
}

// The cache has what was used last, within its bound; what is damaged in it is made anew.
func TestCacheOfBuilds(t *testing.T) {
	c := &buildCache{t.TempDir(), 4000}
	made := 0
	layer := func(key string, anew bool) *cachedLayer {
		t.Helper()
		l, err := c.layer(t.Context(), key, "what", anew, func(to *os.File, _ string) error {
			made++
			random, err := os.Open("/dev/urandom") // does not compress
			if err != nil {
				return err
			}
			defer random.Close()
			_, err = io.CopyN(to, random, 1500)
			return err
		})
		must(t, err)
		return l
	}
	want := func(n int, what string) {
		t.Helper()
		if made != n {
			t.Errorf("%s: %d were made, want %d", what, made, n)
		}
	}
	old := time.Now().Add(-time.Hour)
	a := layer("a", false)
	must(t, os.Chtimes(c.keyFile("a"), old, old))
	layer("b", false)
	must(t, os.Chtimes(c.keyFile("b"), old.Add(-time.Hour), old.Add(-time.Hour)))
	layer("a", false)
	want(2, "what is there is taken")
	layer("c", false) // b goes
	layer("a", false)
	layer("c", false)
	want(3, "the last used ones are kept")
	layer("b", false)
	want(4, "the one that was not used for longest went")
	must(t, os.WriteFile(a.path, []byte("rot"), 0o644))
	layer("a", false)
	want(5, "a damaged one is made anew")
	layer("a", true)
	want(6, "asked for anew")
	must(t, os.MkdirAll(filepath.Join(c.halves(), "work", "of a killed build"), 0o700))
	if _, err := c.layer(t.Context(), "d", "", false, func(*os.File, string) error { return errors.New("no network") }); err == nil {
		t.Error("a build that fails gives a layer")
	}
	layer("d", false)
	if _, err := os.Stat(c.halves()); err == nil {
		t.Error("a build leaves what it worked with")
	}
	var bytes int64
	blobs, err := os.ReadDir(filepath.Join(c.dir, "blobs", "sha256"))
	must(t, err)
	for _, b := range blobs {
		info, err := b.Info()
		must(t, err)
		bytes += info.Size()
	}
	if bytes > c.max {
		t.Errorf("%d bytes are kept, at most %d were wanted", bytes, c.max)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := nodes(ctx, strings.NewReader("")); err == nil {
		t.Error("a build that was ended goes on")
	}
}
