package csi

import spec "github.com/container-storage-interface/spec/lib/go/csi"

// AccessMode is how a volume may be used, in Kubernetes' words.
type AccessMode string

// The access modes.
const (
	ReadWriteOnce    AccessMode = "ReadWriteOnce"
	ReadOnlyMany     AccessMode = "ReadOnlyMany"
	ReadWriteMany    AccessMode = "ReadWriteMany"
	ReadWriteOncePod AccessMode = "ReadWriteOncePod"
)

// Spec is the access mode in the words of the specification. Services that know of SINGLE_NODE_MULTI_WRITER (tells) are
// told whether one pod or several may write; the others have one word for both.
func (m AccessMode) Spec(tells bool) spec.VolumeCapability_AccessMode_Mode {
	switch {
	case m == ReadOnlyMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case m == ReadWriteMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case m == ReadWriteOncePod && tells:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case tells:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}
