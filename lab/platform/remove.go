package platform

import (
	"context"
	"errors"

	"weir.dev/weir/instance"
)

// Remove takes away whatever the platforms of a run have left, after any crash. Nothing there: nil.
func Remove(ctx context.Context, name string) error {
	o := Options{Name: name}
	var errs []error
	for _, letter := range letters {
		i, err := instance.New(name+"-"+string(letter), "")
		if err != nil {
			return err
		}
		if exists(i.Run) || exists(i.Root) {
			errs = append(errs, removeMade(ctx, i))
		}
	}
	return errors.Join(append(errs, removeDaemons(o), removeDocker(o), removeAtManagers(ctx, o))...)
}

// removeMade takes a platform away, whatever it was made of.
func removeMade(ctx context.Context, i instance.Instance) error {
	errs := []error{RemoveContainers(ctx, i), RemoveCgroups(ctx, processGroup(i))}
	for _, n := range networks() {
		errs = append(errs, n.destroy(ctx, linksOf(i)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return RemoveInstance(i)
}
