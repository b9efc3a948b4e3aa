package volume

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/volume/kind"
)

// A project is an identifier that a directory hands on to all that is made in it, and file systems count and limit what a project takes
// (xfs and ext4 that are mounted with prjquota). It makes the limit of an emptyDir one of the kernel's: who is over it cannot write.
//
// There is no record of which directory has which project but the directories themselves, and a project that has no file is free. Which ones a
// volume may have follows from its pod's UID and its name.

// firstProject leaves the low numbers to who gives out numbers by hand, as other node agents do.
const firstProject = 1<<20 + 1

// projectFiles are where administrators keep numbers that they have given out (projects(5), projid(5)).
var projectFiles = []string{"/etc/projects", "/etc/projid"}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, extsize, extents, project, cowextsize uint32
	_                                            [8]byte
}

const (
	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

func getXattr(fd int) (x fsxattr, err error) {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsGetXattr, uintptr(unsafe.Pointer(&x))); e != 0 {
		return x, e
	}
	return x, nil
}

func setXattr(fd int, x fsxattr) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsSetXattr, uintptr(unsafe.Pointer(&x))); e != 0 {
		return e
	}
	return nil
}

// diskQuota is struct fs_disk_quota of linux/dqblk_xfs.h, which all file systems with quotas understand. Blocks are of 512 bytes.
type diskQuota struct {
	version, flags                       int8
	fields                               uint16
	id                                   uint32
	blockHard, blockSoft, inoHard, inoSt uint64
	blocks, inodes                       uint64
	_                                    [56]byte
}

// The commands of quotactl(2) for projects, and what they take.
const (
	projectQuota = 2                        // PRJQUOTA
	xGetQuota    = 0x5803<<8 | projectQuota // Q_XGETQUOTA
	xSetLimits   = 0x5804<<8 | projectQuota // Q_XSETQLIM
	xGetState    = 0x5808<<8 | projectQuota // Q_XGETQSTATV

	quotaVersion  = 1
	fieldHard     = 1 << 3 // FS_DQ_BHARD
	fieldSoft     = 1 << 2 // FS_DQ_BSOFT
	projectFlag   = 2      // FS_PROJ_QUOTA
	stateEnforced = 1 << 5 // FS_QUOTA_PDQ_ENFD
	blockSize     = 512
)

func quotactl(fd int, cmd, id uint32, at unsafe.Pointer) error {
	if _, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), uintptr(cmd), uintptr(id), uintptr(at), 0, 0); e != 0 {
		return e
	}
	return nil
}

// enforced says whether the file system limits projects.
func enforced(fd int) bool {
	var state [256]byte // struct fs_quota_statv
	state[0] = quotaVersion
	if quotactl(fd, xGetState, 0, unsafe.Pointer(&state)) != nil {
		return false
	}
	return binary.NativeEndian.Uint16(state[2:])&stateEnforced != 0
}

// quotaOf is what a project takes and may take.
func quotaOf(fd int, project uint32) (diskQuota, error) {
	q := diskQuota{version: quotaVersion}
	err := quotactl(fd, xGetQuota, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		err = nil // nobody has ever heard of it
	}
	return q, err
}

func setQuota(fd int, project uint32, bytes int64) error {
	blocks := (uint64(bytes) + blockSize - 1) / blockSize
	q := diskQuota{version: quotaVersion, flags: projectFlag, fields: fieldHard | fieldSoft, id: project, blockHard: blocks, blockSoft: blocks}
	return quotactl(fd, xSetLimits, project, unsafe.Pointer(&q))
}

// limitDir gives an empty directory, which becomes the pod's volume, a project of its own with the limit, where the file system knows such. It leaves one
// alone that is in a project already: somebody limits all of what the agent has, or an earlier try was cut off.
func (k *emptyDirs) limitDir(dir string, uid types.UID, volume string, bytes int64) error {
	fd, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	has, err := getXattr(fd)
	if err != nil || has.project != 0 || !enforced(fd) {
		return nil // there are no projects here, and what is used is counted
	}
	k.project.Lock()
	defer k.project.Unlock()
	project, err := freeProject(fd, candidates(uid, volume))
	if err != nil {
		return fmt.Errorf("find a free project: %w", err)
	}
	// The limit comes first, so that nothing is ever in the project without one.
	if err := setQuota(fd, project, bytes); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	has.project, has.flags = project, has.flags|projInherit
	if err := setXattr(fd, has); err != nil {
		return fmt.Errorf("give directory to project %d: %w", project, err)
	}
	return nil
}

func openDir(path string) (int, error) {
	return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// candidates are the projects that a volume may get: always the same ones, so that what a crash has left of it is found again, and others than those of
// other pods, which cannot be guessed. A process without a user namespace of its own may give files that it owns to any project.
func candidates(uid types.UID, volume string) []uint32 {
	sum := sha256.Sum256([]byte(string(uid) + "/" + volume))
	var out []uint32
	for at := 0; at+4 <= len(sum); at += 4 {
		out = append(out, firstProject+binary.BigEndian.Uint32(sum[at:])%(1<<31-firstProject))
	}
	return out
}

// freeProject finds a project that no file is in, and that no administrator has given out.
func freeProject(fd int, from []uint32) (uint32, error) {
	given := map[uint32]bool{}
	for _, file := range projectFiles {
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		givenOut(string(data), given)
	}
	for _, id := range from {
		if given[id] {
			continue
		}
		q, err := quotaOf(fd, id)
		if err != nil {
			return 0, err
		}
		if q.inodes == 0 {
			return id, nil
		}
	}
	return 0, errors.New("all that it may have are taken")
}

// givenOut adds the numbers in a file of projects: "number:path" a line, or "name:number".
func givenOut(text string, given map[uint32]bool) {
	for line := range strings.Lines(text) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), ":") {
			if n, err := strconv.ParseUint(part, 10, 32); err == nil {
				given[uint32(n)] = true
			}
		}
	}
}

// projectOf is the project that limitDir has given a volume; false when it has none.
func projectOf(fd int, uid types.UID, volume string) (uint32, bool) {
	x, err := getXattr(fd)
	return x.project, err == nil && x.flags&projInherit != 0 && slices.Contains(candidates(uid, volume), x.project)
}

// Release takes away the limits of the projects of a pod's volumes, which are about to be removed. In this order a crash leaves none behind.
func (k *emptyDirs) Release(_ context.Context, dir string) error {
	parent := kind.PluginDir(dir, emptyDirPlugin)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil //nolint:nilerr // there are none
	}
	uid := types.UID(filepath.Base(dir))
	for _, e := range entries {
		fd, err := openDir(filepath.Join(parent, e.Name()))
		if err != nil {
			continue
		}
		if id, ok := projectOf(fd, uid, strings.TrimPrefix(e.Name(), stagingPrefix)); ok {
			if err := setQuota(fd, id, 0); err != nil {
				k.log.Debug("the limit of a project that goes stays", "uid", string(uid), "project", id, "error", err)
			}
		}
		unix.Close(fd)
	}
	return nil
}

// Charged is how many bytes the file system counts for an emptyDir with a limit; false when it does not count them.
func Charged(root string, uid types.UID, volume string) (int64, bool) {
	fd, err := openDir(EmptyDir(root, uid, volume))
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	id, ok := projectOf(fd, uid, volume)
	if !ok {
		return 0, false
	}
	q, err := quotaOf(fd, id)
	return int64(q.blocks) * blockSize, err == nil
}
