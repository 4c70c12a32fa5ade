package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"weir.dev/weir/sbom"
)

// builtFile is a file that a recipe put into its image.
type builtFile struct {
	to      string
	program bool
	content []byte
}

// maxStatus bounds the list of packages in an image, in bytes.
const maxStatus = 64 << 20

var busyboxVersion = regexp.MustCompile(`BusyBox v([0-9][0-9.]*) \(([A-Z][a-z]+) ([^)]{1,100})\)`)

// bill makes the bill of materials of a built image: the Debian packages in it, or busybox; its files; the Go modules that its programs are linked from.
func (r Recipe) bill(img v1.Image, base []builtLayer, files []builtFile) (artifact, error) {
	digest, err := img.Digest()
	if err != nil {
		return artifact{}, err
	}
	url := fmt.Sprintf("pkg:oci/%s@%s?arch=%s&tag=%s", r.Name, escape(digest.String()), runtime.GOARCH, r.Tag)
	d := sbom.New(cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeContainer, Name: r.Name, Version: r.Tag, Description: r.Description, PackageURL: url})
	if r.Debian() {
		err = addPackages(d, base)
	} else {
		err = addBusybox(d, base)
	}
	if err != nil {
		return artifact{}, err
	}
	for _, f := range files {
		sum := sha256.Sum256(f.content)
		c := cyclonedx.Component{BOMRef: "file:" + f.to, Type: cyclonedx.ComponentTypeFile, Name: f.to, Hashes: sbom.SHA256(hex.EncodeToString(sum[:]))}
		if f.program {
			c.Type = cyclonedx.ComponentTypeApplication
		}
		d.Add(d.Self(), c)
		if info, err := buildinfo.Read(bytes.NewReader(f.content)); err == nil { // a Go program
			d.AddModules(c.BOMRef, info)
		}
	}
	var text bytes.Buffer
	if err := d.Write(&text); err != nil {
		return artifact{}, err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return artifact{}, err
	}
	kind, err := img.MediaType()
	if err != nil {
		return artifact{}, err
	}
	h, size, err := v1.SHA256(bytes.NewReader(text.Bytes()))
	if err != nil {
		return artifact{}, err
	}
	if size > maxSBOM {
		return artifact{}, fmt.Errorf("its bill of materials has %d bytes, at most %d", size, maxSBOM)
	}
	return newArtifact(v1.Descriptor{MediaType: kind, Digest: digest, Size: int64(len(raw))}, sbom.MediaType, []byte("{}"), emptyConfig,
		[]v1.Descriptor{{MediaType: sbom.MediaType, Digest: h, Size: size}}, map[v1.Hash][]byte{h: text.Bytes()})
}

// escape a version for a package's URL.
func escape(s string) string {
	return strings.NewReplacer("%", "%25", ":", "%3A", "+", "%2B", "/", "%2F", "?", "%3F", "#", "%23", "@", "%40", " ", "%20").Replace(s)
}

// addBusybox adds the program that the base is made of.
func addBusybox(d *sbom.Document, base []builtLayer) error {
	content, err := fileOf(base, "bin/busybox")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	c := cyclonedx.Component{BOMRef: "file:/bin/busybox", Type: cyclonedx.ComponentTypeApplication, Name: "busybox", Hashes: sbom.SHA256(hex.EncodeToString(sum[:]))}
	if m := busyboxVersion.FindSubmatch(content); m != nil {
		c.Version = string(m[1])
		c.PackageURL = fmt.Sprintf("pkg:deb/%s/busybox-static@%s?arch=%s", strings.ToLower(string(m[2])), escape(string(m[3])), runtime.GOARCH)
	}
	d.Add(d.Self(), c)
	return nil
}

// addPackages adds what dpkg has installed.
func addPackages(d *sbom.Document, base []builtLayer) error {
	status, err := fileOf(base, "var/lib/dpkg/status")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(status))
	lines.Buffer(nil, 1<<20)
	fields := map[string]string{}
	add := func() {
		name, version, arch := fields["Package"], fields["Version"], fields["Architecture"]
		if name != "" && fields["Status"] == "install ok installed" {
			url := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", escape(name), escape(version), arch)
			d.Add(d.Self(), cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url})
		}
		clear(fields)
	}
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			add()
		} else if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			fields[key] = value
		}
	}
	add()
	return lines.Err()
}

// fileOf is a file as the highest layer with it has it.
func fileOf(layers []builtLayer, name string) ([]byte, error) {
	for i := len(layers) - 1; i >= 0; i-- {
		content, err := fileIn(layers[i], name)
		if content != nil || err != nil {
			return content, err
		}
	}
	return nil, fmt.Errorf("no layer of the base has /%s", name)
}

func fileIn(l v1.Layer, name string) ([]byte, error) {
	r, err := l.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all := tar.NewReader(r)
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if strings.TrimPrefix(h.Name, "./") == name && h.Typeflag == tar.TypeReg {
			if h.Size > maxStatus {
				return nil, fmt.Errorf("/%s has %d bytes, at most %d", name, h.Size, maxStatus)
			}
			return io.ReadAll(all)
		}
	}
}
