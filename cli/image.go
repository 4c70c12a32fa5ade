package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"weir.dev/weir/cli/command"
)

func (a *app) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Look at the images that functions are made of",
		Example: "  weir image list",
		Args:    cobra.ArbitraryArgs,
		RunE:    command.Group,
	}
	var dir string
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the images that functions can be made of",
		Long:    "List the images that functions can be made of. A daemon that was started with --images needs the same here; the variable serves both.",
		Example: "  weir image list\n  weir image list -o json\n  weir image list --images bin/images",
		Args:    command.NoArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.o.Images == nil {
				return command.MissingHook("an image store")
			}
			i, err := a.Instance()
			if err != nil {
				return err
			}
			images, err := a.o.Images(cmd.Context(), i, dir)
			if err != nil {
				return err
			}
			if a.Structured() {
				return a.Encode(map[string]any{"items": append([]Image{}, images...)})
			}
			return a.PrintTable(imageTable(images))
		},
	}
	command.ImagesFlag(list.Flags(), &dir)
	cmd.AddCommand(list)
	return cmd
}

func imageTable(images []Image) command.Table {
	t := command.Table{Head: []string{"IMAGE", "PORTS", "SIZE", "DIGEST", "DESCRIPTION"}}
	for _, i := range images {
		t.Add(i.Ref, strings.Join(i.Ports, ","), command.Size(i.Bytes), shortDigest(i.Digest), i.Description)
	}
	return t
}
