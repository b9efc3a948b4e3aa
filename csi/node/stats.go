package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berth-node/berth/csi"
)

// ErrNoStats is of a driver that has no statistics of volumes.
var ErrNoStats = errors.New("the driver has no statistics of volumes")

// Stats asks the driver for the statistics of a volume. path is where a pod has it; "": where any has it. It waits for
// nothing else that is done with the volume, only for another who asks.
func (m *Manager) Stats(ctx context.Context, driver, handle, path string) (Stats, error) {
	out, err := m.stats(ctx, driver, handle, path)
	if err != nil {
		return out, fmt.Errorf("statistics of volume: %w", err)
	}
	return out, nil
}

func (m *Manager) stats(ctx context.Context, driver, handle, path string) (Stats, error) {
	none := Usage{-1, -1, -1}
	out := Stats{Bytes: none, Inodes: none}
	v, stage, path := m.placeOf(key(driver, handle), path)
	if v == nil {
		return out, errors.New("no pod has it there")
	}
	d, err := m.drivers.Get(driver)
	if err != nil {
		return out, err
	}
	measures, tells := d.Node(spec.NodeServiceCapability_RPC_GET_VOLUME_STATS), d.Node(spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	if !measures && !tells {
		return out, fmt.Errorf("%w: %s", ErrNoStats, driver)
	}
	// A driver that does not answer for a volume is not asked once more by everybody who wants to know.
	select {
	case v.stats <- struct{}{}:
		defer func() { <-v.stats }()
	case <-ctx.Done():
		return out, ctx.Err()
	}
	if measures {
		answer, err := d.Client().Node().NodeGetVolumeStats(ctx, &spec.NodeGetVolumeStatsRequest{
			VolumeId: handle, VolumePath: path, StagingTargetPath: stage,
		})
		if err != nil {
			return out, err
		}
		out.take(answer, d.Condition())
	}
	if tells {
		answer, err := d.Client().Node().NodeGetVolumeHealth(ctx, &spec.NodeGetVolumeHealthRequest{
			VolumeId: handle, VolumePublishPath: path, StagingTargetPath: stage,
		})
		if err != nil {
			return out, err
		}
		out.Condition = conditionOf(answer.GetVolumeHealth())
	}
	return out, nil
}

// placeOf is where a volume is published.
func (m *Manager) placeOf(key, path string) (v *entry, stage, at string) {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	v = m.ledger.entries[key]
	if v == nil || v.record == nil {
		return nil, "", ""
	}
	if paths := slices.Sorted(maps.Keys(v.note.Published)); path == "" && len(paths) > 0 {
		path = paths[0]
	}
	if !v.note.published(path) {
		return nil, "", ""
	}
	return v, v.record.Stage, path
}

// take reads what a driver has answered. It may say anything: what makes no sense is not said.
func (s *Stats) take(answer *spec.NodeGetVolumeStatsResponse, condition bool) {
	for _, u := range answer.GetUsage() {
		is := Usage{said(u.GetAvailable()), said(u.GetTotal()), said(u.GetUsed())}
		switch u.GetUnit() {
		case spec.VolumeUsage_BYTES:
			s.Bytes = is
		case spec.VolumeUsage_INODES:
			s.Inodes = is
		}
	}
	if condition {
		s.Condition = oldCondition(answer.ProtoReflect().GetUnknown())
	}
}

func said(n int64) int64 {
	if n < 0 {
		return -1
	}
	return n
}

// maxText is how much is kept of what a driver says of a volume's health, in bytes.
const maxText = 1 << 10

// Fields of NodeGetVolumeStatsResponse until version 1.12 of the specification: volume_condition, and in it abnormal
// and message.
const (
	fieldCondition = 2
	fieldAbnormal  = 1
	fieldMessage   = 2
)

// oldCondition reads a volume_condition, which the messages of 1.13 know no more, and drivers of before have.
func oldCondition(unknown []byte) Condition {
	var c Condition
	each(unknown, func(field protowire.Number, _ uint64, value []byte) {
		if field != fieldCondition || value == nil {
			return
		}
		c.Known = true
		each(value, func(field protowire.Number, n uint64, text []byte) {
			switch field {
			case fieldAbnormal:
				c.Abnormal = n != 0
			case fieldMessage:
				c.Message = csi.Text(string(text[:min(len(text), maxText)]))
			}
		})
	})
	return c
}

// each calls fn with the fields of a message that are numbers or texts, until it makes no sense.
func each(b []byte, fn func(field protowire.Number, n uint64, text []byte)) {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return
		}
		b = b[size:]
		switch kind {
		case protowire.VarintType:
			var n uint64
			if n, size = protowire.ConsumeVarint(b); size >= 0 {
				fn(field, n, nil)
			}
		case protowire.BytesType:
			var text []byte
			if text, size = protowire.ConsumeBytes(b); size >= 0 {
				fn(field, 0, text)
			}
		default:
			size = protowire.ConsumeFieldValue(field, kind, b)
		}
		if size < 0 {
			return
		}
		b = b[size:]
	}
}

// conditionOf is the worst of what a driver says.
func conditionOf(h *spec.VolumeHealth) Condition {
	c := Condition{Known: h != nil}
	worst := spec.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE
	for _, e := range h.GetHealthStatuses() {
		if c.Abnormal && e.GetStatus() <= worst {
			continue
		}
		worst = e.GetStatus()
		c.Abnormal, c.Reason, c.Message = true, e.GetStatus().String(), csi.Text(e.GetMessage())
		if c.Message == "" {
			c.Message = csi.Text(e.GetReason())
		}
	}
	return c
}
