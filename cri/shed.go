package cri

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-node/berth/cri/container"
)

// shedWeighing is how long the files of containers that have ended may be counted, of half the time that there is.
const shedWeighing = 10 * time.Second

// shed removes the files of containers that have ended, the oldest first, until so much is freed, and says how much
// that was. What the files of each are is counted first, so that there is no end to it for those that have none.
func (m *meters) shed(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error) {
	var ended []*container.Container
	for _, c := range slices.Backward(m.ctrs.Table.Match("", "", nil)) {
		if c.Record().State == container.Exited {
			ended = append(ended, c)
		}
	}
	most := shedWeighing
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline)/2)
	}
	counting, cancel := context.WithTimeout(ctx, most)
	found := m.weigh(counting, ended)
	cancel()
	for i, c := range ended {
		if freed >= bytes && freedInodes >= inodes || ctx.Err() != nil {
			break
		}
		of := found[i]
		if of.GetInodesUsed().GetValue() == 0 {
			continue // it has gone already
		}
		if serr := m.ctrs.Stopper.Shed(ctx, c); serr != nil {
			err = errors.Join(err, serr)
			continue
		}
		freed += int64(of.GetUsedBytes().GetValue())
		freedInodes += int64(of.GetInodesUsed().GetValue())
	}
	return freed, freedInodes, err
}
