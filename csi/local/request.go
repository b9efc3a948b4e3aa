package local

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/mount"
)

// nodeID is the form of a node's name, which has at most maxNodeID bytes. To count them in the expression would have
// every command compile so many copies.
var nodeID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

const maxNodeID = 63

// The types of storage.
const (
	typeDirectory = "directory"
	typeLoop      = "loop"
	typeLVM       = "lvm"
)

// What parameters of a class are called, and what they may be.
const (
	parameterType       = "type"
	parameterQuota      = "quota"
	parameterTrim       = "trim"
	parameterEncryption = "encryption"

	quotaRequired   = "required"
	quotaBestEffort = "best-effort"
	trimUnstage     = "unstage"
	trimMount       = "mount"
	trimNever       = "never"
	encryptionLUKS  = "luks"
	encryptionNone  = "none"
)

// maxName is the longest string of a request by the specification ("Size Limits"), in bytes.
const maxName = 128

// Sizes in bytes.
const (
	defaultSize = 1 << 30
	leastSize   = 1 << 20
	// maxSize is that of a file of ext4 with blocks of 4 KiB, less a block.
	maxSize  = 16<<40 - sizeStep
	sizeStep = 4096
)

func invalid(field, format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", field, fmt.Sprintf(format, args...))
}

// named checks a name that a request has to have.
func named(field, name string) error {
	switch {
	case name == "":
		return invalid(field, "must be given")
	case len(name) > maxName:
		return invalid(field, "has %d bytes, and may have %d", len(name), maxName)
	}
	return nil
}

// placed checks a path that a request has to have.
func placed(field, path string) error {
	switch {
	case path == "":
		return invalid(field, "must be given")
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
		return invalid(field, "%q is not the absolute path of a mount point, without . and .. in it", shorten(path))
	}
	return nil
}

// shape is what is asked for of a volume.
type shape struct {
	record.Content
	Quota, Trim string
}

// leastOf is how small a file system can be, in bytes: less is refused by the program that makes it.
func leastOf(fsType string) int64 {
	switch fsType {
	case "xfs":
		return 300 << 20
	case "btrfs":
		return 128 << 20
	case "ext4", "ext3", "ext2":
		return 2 << 20
	}
	return leastSize
}

// readParameters takes the parameters of a class.
func readParameters(parameters map[string]string) (s shape, err error) {
	s.Quota, s.Trim = quotaBestEffort, trimUnstage
	for name, value := range parameters {
		may := map[string][]string{
			parameterType: {typeDirectory, typeLoop, typeLVM}, parameterQuota: {quotaRequired, quotaBestEffort},
			parameterTrim: {trimUnstage, trimMount, trimNever}, parameterEncryption: {encryptionNone, encryptionLUKS},
		}[name]
		if may == nil {
			if strings.HasPrefix(name, "csi.storage.k8s.io/") { // what a provisioner tells of the claim
				continue
			}
			return s, invalid("parameters", "there is no parameter %q", shorten(name))
		}
		if !slices.Contains(may, value) {
			return s, invalid("parameters", "%s %q: must be one of %s", name, shorten(value), strings.Join(may, ", "))
		}
		switch name {
		case parameterType:
			s.Type = value
		case parameterQuota:
			s.Quota = value
		case parameterTrim:
			s.Trim = value
		case parameterEncryption:
			s.Encrypted = value == encryptionLUKS
		}
	}
	return s, nil
}

// readShape takes what is asked for of a volume by parameters and capabilities.
func (b *backends) readShape(parameters map[string]string, capabilities []*csi.VolumeCapability) (shape, error) {
	s, err := readParameters(parameters)
	if err != nil {
		return s, err
	}
	if len(capabilities) == 0 {
		return s, invalid("volume_capabilities", "must be given")
	}
	mounts := 0
	for _, c := range capabilities {
		if err := checkCapability("volume_capabilities", c); err != nil {
			return s, err
		}
		if c.GetBlock() != nil {
			s.Block = true
			continue
		}
		mounts++
		if fsType := c.GetMount().GetFsType(); fsType != "" {
			if s.FSType != "" && s.FSType != fsType {
				return s, invalid("volume_capabilities", "two types of file systems: %q and %q", s.FSType, shorten(fsType))
			}
			s.FSType = fsType
		}
	}
	if s.Block && mounts > 0 {
		return s, invalid("volume_capabilities", "a volume is mounted or a block device, not both")
	}
	return s, b.complete(&s)
}

// complete fills in what was not asked for, and says what does not go together.
func (b *backends) complete(s *shape) error {
	if s.Type == "" {
		s.Type = typeDirectory
		if s.Block || s.Encrypted {
			s.Type = typeLoop
		}
	}
	switch {
	case s.Type == typeLVM && b.lvm == nil:
		return invalid("parameters", "type lvm: this node has no volume group for it (--volume-group)")
	case s.Type != typeDirectory && s.Quota == quotaRequired:
		return invalid("parameters", "quota: only a volume of the type directory needs one")
	case s.Type == typeDirectory && s.Block:
		return invalid("volume_capabilities", "a volume of the type directory cannot be a block device")
	case s.Type == typeDirectory && s.Encrypted:
		return invalid("parameters", "encryption: a volume of the type directory cannot be encrypted")
	case s.Type == typeDirectory:
		// Some provisioners have a file system that they ask for where none is.
		s.FSType, s.Trim = "", trimNever
	case !s.Block:
		s.FSType = cmp.Or(s.FSType, "ext4")
		if !slices.Contains([]string{"ext4", "xfs", "btrfs"}, s.FSType) {
			return invalid("volume_capabilities", "fs_type %q: must be ext4, xfs or btrfs", shorten(s.FSType))
		}
	}
	return nil
}

// checkCapability says what of a capability is not to be had. A volume is on one node.
func checkCapability(field string, c *csi.VolumeCapability) error {
	if c == nil {
		return invalid(field, "must be given")
	}
	if c.GetBlock() == nil && c.GetMount() == nil {
		return invalid(field, "access_type: must be given")
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return invalid(field, "access_mode: must be given")
	default:
		return invalid(field, "access_mode %s: a volume is on the disk of one node", mode)
	}
	return checkMount(field, c.GetMount())
}

// maxFlags bounds the mount flags of a volume, in bytes.
const maxFlags = 4096

func checkMount(field string, m *csi.VolumeCapability_MountVolume) error {
	size := 0
	for _, flag := range m.GetMountFlags() {
		if size += len(flag); size > maxFlags {
			return invalid(field, "mount_flags: more than %d bytes", maxFlags)
		}
		// Each would be one of the list that mount(8) takes.
		if flag == "" || strings.ContainsAny(flag, ",\x00\n") || strings.HasPrefix(flag, "-") {
			return invalid(field, "mount_flags: %q is no mount flag", shorten(flag))
		}
		for _, never := range []string{"loop", "bind", "rbind", "move", "remount", "x-", "X-", "helper=", "offset=", "sizelimit="} {
			if strings.HasPrefix(flag, never) {
				return invalid(field, "mount_flags: %q is not for a volume", shorten(flag))
			}
		}
	}
	if len(m.GetFsType()) > maxName {
		return invalid(field, "fs_type: more than %d bytes", maxName)
	}
	if _, err := groupOf(m.GetVolumeMountGroup()); err != nil {
		return invalid(field, "volume_mount_group: %v", err)
	}
	return nil
}

// fits says why a volume does not have a capability; nil when it does.
func fits(v record.Volume, field string, c *csi.VolumeCapability) error {
	if err := checkCapability(field, c); err != nil {
		return err
	}
	switch fsType := c.GetMount().GetFsType(); {
	case v.Block && c.GetBlock() == nil:
		return invalid(field, "the volume is a block device")
	case !v.Block && c.GetBlock() != nil:
		return invalid(field, "the volume has a file system")
	case v.Type == typeDirectory:
		if not := mount.NotForBind(c.GetMount().GetMountFlags()); not != "" {
			return invalid(field, "mount_flags: %q is not for a volume of the type directory", not)
		}
	case fsType != "" && !v.Block && fsType != v.FSType:
		return invalid(field, "fs_type: the volume has %s, not %q", v.FSType, shorten(fsType))
	}
	return nil
}

// sizeRange is how large a volume may be, in bytes.
type sizeRange struct{ least, most int64 }

// readRange takes a range of capacity.
func readRange(r *csi.CapacityRange) (sizeRange, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case required < 0:
		return sizeRange{}, invalid("capacity_range", "required_bytes %d: must not be negative", required)
	case limit < 0:
		return sizeRange{}, invalid("capacity_range", "limit_bytes %d: must not be negative", limit)
	case limit > 0 && required > limit:
		return sizeRange{}, invalid("capacity_range", "required_bytes %d: more than limit_bytes %d", required, limit)
	}
	if limit == 0 {
		limit = math.MaxInt64
	}
	return sizeRange{required, limit}, nil
}

// has says whether a size is in the range.
func (r sizeRange) has(size int64) bool { return size >= r.least && size <= r.most }

// choose is the size of a volume that has to have at least some bytes, and the default where nothing is asked for.
func (r sizeRange) choose(least, preset int64) (int64, error) {
	size := r.least
	if size == 0 {
		size = min(preset, r.most/sizeStep*sizeStep)
	}
	size = max(size, least)
	if size > maxSize {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: %d bytes are more than a volume can have, %d", size, int64(maxSize))
	}
	size = (size + sizeStep - 1) / sizeStep * sizeStep
	if size > r.most {
		return 0, status.Errorf(codes.OutOfRange, "capacity_range: limit_bytes %d: the volume takes %d at least", r.most, size)
	}
	return size, nil
}
