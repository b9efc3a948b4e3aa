package csi

import (
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
)

// TestAccessModes is kubelet's table of them.
func TestAccessModes(t *testing.T) {
	type mode = spec.VolumeCapability_AccessMode_Mode
	for given, want := range map[AccessMode][2]mode{
		ReadWriteOnce:    {spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		ReadWriteOncePod: {spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		ReadOnlyMany:     {spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		ReadWriteMany:    {spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	} {
		if got := [2]mode{given.Spec(false), given.Spec(true)}; got != want {
			t.Errorf("%s is %v, want %v", given, got, want)
		}
	}
}
