package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Program is one that runs until it is ended.
type Program struct {
	End
	Argv []string
	Port int // of UDP at which it is to listen; 0: at none
}

// Programs that run.
type Programs struct {
	x      *crowd
	ctx    context.Context // of them; as long as they run
	cancel context.CancelCauseFunc
}

// errEnded is why programs end that are ended.
var errEnded = errors.New("it is over")

// StartPrograms starts programs, and returns when all listen. The caller closes them.
func StartPrograms(ctx context.Context, list []Program) (*Programs, error) {
	p := &Programs{}
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.x = &crowd{cancel: p.cancel}
	if err := p.start(ctx, list); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Programs) start(ctx context.Context, list []Program) error {
	at, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	for _, one := range list {
		if err := Installed(one.Argv[0]); err != nil {
			return errors.Join(err, at.Close())
		}
		if _, err := p.x.program(p.ctx, one.End, at, one.Argv); err != nil {
			return errors.Join(err, at.Close())
		}
	}
	if err := at.Close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pairsReady, fmt.Errorf("a program does not listen after %s", pairsReady))
	defer cancel()
	for _, one := range list {
		for one.Port != 0 {
			up, err := listens(one.Space, "udp", one.Port)
			if err != nil || up {
				if err != nil {
					return err
				}
				break
			}
			if p.ctx.Err() != nil {
				return context.Cause(p.ctx)
			}
			if err := look(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends them. One that had ended before is an error.
func (p *Programs) Close() error {
	cause := context.Cause(p.ctx)
	p.cancel(errEnded)
	p.x.all.Wait()
	return cause
}
