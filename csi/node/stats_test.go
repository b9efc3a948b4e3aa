package node

import (
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestStats(t *testing.T) {
	h := newHouse(t)
	h.volume("v")
	if _, err := h.Stats(t.Context(), driverName, "v", ""); err == nil {
		t.Error("there are statistics of nothing")
	}
	path := h.publish(h.request("a", "v"))
	for _, at := range []string{"", path} {
		s, err := h.Stats(t.Context(), driverName, "v", at)
		if want := (Stats{Bytes: Usage{6, 10, 4}, Inodes: Usage{-1, 3, 2}}); err != nil || s != want {
			t.Errorf("at %q: %+v, %v", at, s, err)
		}
	}
	if _, err := h.Stats(t.Context(), driverName, "v", "/"); err == nil {
		t.Error("there are statistics of another place")
	}
	must(t, h.Release(t.Context(), h.podDir("a")))
	h.nothing()
}

func TestConditions(t *testing.T) {
	var inner []byte
	inner = protowire.AppendTag(inner, fieldAbnormal, protowire.VarintType)
	inner = protowire.AppendVarint(inner, 1)
	inner = protowire.AppendTag(inner, fieldMessage, protowire.BytesType)
	inner = protowire.AppendString(inner, "on\nfire")
	outer := protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), inner)
	if got, want := oldCondition(outer), (Condition{true, true, "", "on fire"}); got != want {
		t.Errorf("got %+v", got)
	}
	got := conditionOf(&spec.VolumeHealth{HealthStatuses: []*spec.VolumeHealth_VolumeHealthEntry{
		{Status: spec.VolumeHealthErrorType_DEGRADED, Message: "slow"}, {Status: spec.VolumeHealthErrorType_DATA_LOSS, Reason: "Gone"},
	}})
	if want := (Condition{true, true, "DATA_LOSS", "Gone"}); got != want {
		t.Errorf("got %+v", got)
	}
	if got := conditionOf(&spec.VolumeHealth{}); got != (Condition{Known: true}) {
		t.Errorf("got %+v", got)
	}
}
