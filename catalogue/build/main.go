// Command build makes the catalogue's images: go run ./catalogue/build -o LAYOUT [FOLDER...]
// Those of Debian packages, which have to be fetched, it makes when they are named or with -packages. With -digests it compares what it has made with a list of
// digests; with -update it writes the list.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"weir.dev/weir/catalogue"
	"weir.dev/weir/image"
)

func main() {
	var o options
	flag.StringVar(&o.out, "o", "bin/images", "OCI image layout to write")
	flag.StringVar(&o.catalogue, "catalogue", "catalogue", "folder of functions, each with its image.yaml")
	flag.BoolVar(&o.packages, "packages", false, "make only the images of Debian packages")
	flag.StringVar(&o.digests, "digests", "", "list of digests (catalogue/"+catalogue.DigestsFile+") to compare all images without Debian packages with")
	flag.BoolVar(&o.update, "update", false, "write the list of digests; one that holds for other tools than this machine's stays as it is: remove it first")
	flag.Parse()
	o.dirs = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

type options struct {
	out, catalogue, digests string
	packages, update        bool
	dirs                    []string
}

func (o options) run(ctx context.Context) error {
	dirs, named := o.dirs, len(o.dirs) > 0
	if o.digests != "" && (named || o.packages) {
		return errors.New("-digests is about all images without Debian packages: name no folders, and leave -packages out")
	}
	if o.update && o.digests == "" {
		return errors.New("-update needs -digests")
	}
	if !named {
		var err error
		if dirs, err = image.FindRecipes(o.catalogue); err != nil {
			return err
		}
	}
	if len(dirs) == 0 {
		return fmt.Errorf("no %s in the folders of %s", image.RecipeFile, o.catalogue)
	}
	made := catalogue.Digests{Images: map[string]string{}}
	for _, dir := range dirs {
		r, err := image.LoadRecipe(dir)
		if err != nil {
			return err
		}
		if !named && r.Debian() != o.packages {
			continue
		}
		r.Say = func(what string) { fmt.Fprintln(os.Stderr, "build:", what) }
		digest, err := r.Build(ctx, o.out)
		if err != nil {
			return err
		}
		fmt.Printf("%s:%s %s\n", r.Name, r.Tag, digest)
		made.Images[r.Name+":"+r.Tag] = digest
	}
	if o.digests == "" {
		return nil
	}
	var err error
	if made.Tools, err = image.Tools(ctx, o.catalogue); err != nil {
		return err
	}
	return o.compare(made)
}

// compare what was made with the list, or write the list.
func (o options) compare(made catalogue.Digests) error {
	listed, err := catalogue.ReadDigests(o.digests)
	if o.update && errors.Is(err, fs.ErrNotExist) {
		return made.Write(o.digests)
	}
	if err != nil {
		return err
	}
	other, differ := listed.OtherTools(made.Tools), listed.Differ(made)
	switch {
	case len(other) > 0:
		fmt.Fprintf(os.Stderr, "build: %s holds for other tools: %s. With these %d of %d images differ\n", o.digests, strings.Join(other, "; "), len(differ), len(made.Images))
		return nil
	case o.update:
		return made.Write(o.digests)
	case len(differ) > 0:
		return fmt.Errorf("not as %s says, though the tools are the same:\n%s", o.digests, strings.Join(differ, "\n"))
	}
	fmt.Fprintf(os.Stderr, "build: all %d images are as %s says\n", len(made.Images), o.digests)
	return nil
}
