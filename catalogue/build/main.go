// Command build makes the catalogue's images: go run ./catalogue/build -o LAYOUT [FOLDER...]
// Those of Debian packages, which have to be fetched, it makes when they are named or with -packages.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"weir.dev/weir/image"
)

func main() {
	out := flag.String("o", "bin/images", "OCI image layout to write")
	catalogue := flag.String("catalogue", "catalogue", "folder of functions, each with its image.yaml")
	packages := flag.Bool("packages", false, "make only the images of Debian packages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *out, *catalogue, *packages, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, catalogue string, packages bool, dirs []string) error {
	named := len(dirs) > 0
	if len(dirs) == 0 {
		var err error
		if dirs, err = image.FindRecipes(catalogue); err != nil {
			return err
		}
	}
	if len(dirs) == 0 {
		return fmt.Errorf("no %s in the folders of %s", image.RecipeFile, catalogue)
	}
	for _, dir := range dirs {
		r, err := image.LoadRecipe(dir)
		if err != nil {
			return err
		}
		if !named && r.Debian() != packages {
			continue
		}
		r.Say = func(what string) { fmt.Fprintln(os.Stderr, "build:", what) }
		digest, err := r.Build(ctx, out)
		if err != nil {
			return err
		}
		fmt.Printf("%s:%s %s\n", r.Name, r.Tag, digest)
	}
	return nil
}
