package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/command"
	"github.com/berth-node/berth/internal/mount"
)

// nfs are exports of servers. Whatever a server does, taking a volume away again does not wait for it.
type nfs struct{}

// Traits says that an export is mounted in the pod's directory.
func (nfs) Traits() kind.Traits { return kind.Traits{Plugin: "nfs", Elsewhere: true} }

func nfsOf(s kind.Source) *corev1.NFSVolumeSource {
	if s.Bound != nil {
		return s.Bound.Spec.NFS
	}
	return s.Pod.NFS
}

// Makes says whether the source is an export.
func (nfs) Makes(s kind.Source) bool { return nfsOf(s) != nil }

// ReadOnly says whether the export is for reading only.
func (nfs) ReadOnly(s kind.Source) bool { return nfsOf(s).ReadOnly }

// Setup mounts the export.
func (k nfs) Setup(ctx context.Context, v *kind.Volume) (kind.Made, error) {
	n, options, made := nfsOf(v.Source), v.MountOptions(), kind.Made{Path: v.Path(k.Traits().Plugin)}
	if err := os.MkdirAll(made.Path, 0o750); err != nil {
		return made, err
	}
	if mounted, err := mount.Is(made.Path); err != nil || mounted {
		return made, err
	}
	const tool = "mount.nfs"
	if _, err := exec.LookPath(tool); err != nil {
		return made, errors.New("NFS needs the program mount.nfs on the node: install nfs-common (Debian, Ubuntu) or nfs-utils (Fedora, RHEL, Alpine)")
	}
	if n.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	args := []string{n.Server + ":" + n.Path, made.Path}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	if err := command.Run(ctx, tool, args...); err != nil {
		return made, fmt.Errorf("mount %s: %w", args[0], err)
	}
	return made, nil
}
