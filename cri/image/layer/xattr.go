package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"iter"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
)

const paxXattr = "SCHILY.xattr."

// xattrs are those of the entry that a layer may set. trusted.overlay.* would tell OverlayFS where to look for files,
// labels and hashes of security modules belong to the machine an image was built on.
func xattrs(h *tar.Header) map[string]string {
	var set map[string]string
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, paxXattr)
		if ok && allowed(name) {
			if set == nil {
				set = map[string]string{}
			}
			set[name] = v
		}
	}
	return set
}

func allowed(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

func (a *applier) setXattrs(fd int, h *tar.Header) error {
	if len(h.PAXRecords) == 0 {
		return nil
	}
	for name, value := range xattrs(h) {
		err := unix.Fsetxattr(fd, name, []byte(value), 0)
		if errors.Is(err, unix.ENOTSUP) {
			if !a.lacking {
				a.lacking = true
				a.opt.Log.Warn("filesystem cannot keep extended attributes of images", "attribute", name,
					"file", h.Name)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("set attribute %q: %w", name, err)
		}
	}
	return nil
}

// listXattrs reads the xattrs of an open file that a layer may set.
func listXattrs(fd int) (iter.Seq2[string, []byte], error) {
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size == 0 {
		if errors.Is(err, unix.ENOTSUP) {
			err = nil
		}
		return maps.All(map[string][]byte(nil)), err
	}
	buf := make([]byte, size)
	if size, err = unix.Flistxattr(fd, buf); err != nil {
		return nil, err
	}
	set := map[string][]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:size]), "\x00"), "\x00") {
		if !allowed(name) {
			continue
		}
		n, err := unix.Fgetxattr(fd, name, nil)
		if err != nil {
			return nil, err
		}
		value := make([]byte, n)
		if n, err = unix.Fgetxattr(fd, name, value); err != nil {
			return nil, err
		}
		set[name] = value[:n]
	}
	return maps.All(set), nil
}
