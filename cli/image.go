package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Look at the images that functions are made of",
		Example: "  weir image list",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	var dir string
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the images that functions can be made of",
		Long:    "List the images that functions can be made of. A daemon that was started with --images needs the same here; the variable serves both.",
		Example: "  weir image list\n  weir image list -o json\n  weir image list --images bin/images",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Images == nil {
				return missingHook("an image store")
			}
			i, err := a.instance()
			if err != nil {
				return err
			}
			images, err := a.Images(cmd.Context(), i, dir)
			if err != nil {
				return err
			}
			if a.structured() {
				return a.encode(map[string]any{"items": append([]Image{}, images...)})
			}
			return a.printTable(imageTable(images))
		},
	}
	imagesFlag(list.Flags(), &dir)
	cmd.AddCommand(list)
	return cmd
}

func imagesFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "images", "", "OCI image layout to look into first, before those beside the program and in /usr/share/weir/images")
}

func imageTable(images []Image) table {
	t := table{head: []string{"IMAGE", "PORTS", "SIZE", "DIGEST", "DESCRIPTION"}}
	for _, i := range images {
		t.add(i.Ref, strings.Join(i.Ports, ","), size(i.Bytes), shortDigest(i.Digest), i.Description)
	}
	return t
}
