// Package quota limits directories by projects: identifiers that a directory hands on to all that is made in it, and
// that file systems count and limit (xfs and ext4 that are mounted with prjquota). Such a limit is one of the kernel's:
// who is over it cannot write.
//
// There is no record of which directory has which project but the directories themselves, and a project that has no
// file is free.
package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// First leaves the low numbers to who gives out numbers by hand, as other node agents do.
const First = 1<<20 + 1

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

// diskQuota is struct fs_disk_quota of linux/dqblk_xfs.h, which all file systems with quotas understand. Blocks are of
// 512 bytes.
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

// Enforced says whether the file system limits projects.
func Enforced(fd int) bool {
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

// Limit sets how many bytes a project may take, rounded up to blocks of 512; 0: as many as there are.
func Limit(fd int, project uint32, bytes int64) error {
	blocks := (uint64(bytes) + blockSize - 1) / blockSize
	q := diskQuota{version: quotaVersion, flags: projectFlag, fields: fieldHard | fieldSoft, id: project, blockHard: blocks, blockSoft: blocks}
	return quotactl(fd, xSetLimits, project, unsafe.Pointer(&q))
}

// Project is the project of an open file or directory, and whether what is made in it gets the same.
func Project(fd int) (id uint32, inherited bool, err error) {
	x, err := getXattr(fd)
	return x.project, x.flags&projInherit != 0, err
}

// Give puts an open file or directory, and what will be made in it, into a project.
func Give(fd int, project uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	x, err := getXattr(fd)
	if err != nil {
		return err
	}
	x.project = project
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		x.flags |= projInherit
	}
	return setXattr(fd, x)
}

// Usage is what a project takes and may take.
type Usage struct {
	Bytes, Inodes uint64
	Limit         uint64 // in bytes; 0: none
}

// Of is what a project takes on the file system of fd. Nobody has to have heard of the project.
func Of(fd int, project uint32) (Usage, error) {
	q, err := quotaOf(fd, project)
	return Usage{Bytes: q.blocks * blockSize, Inodes: q.inodes, Limit: max(q.blockHard, q.blockSoft) * blockSize}, err
}

// Candidates are the projects that somebody may get: always the same ones for one owner, so that what a crash has left
// is found again, and others than those of other owners, which cannot be guessed. A process without a user namespace of
// its own may give files that it owns to any project.
func Candidates(owner string) []uint32 {
	sum := sha256.Sum256([]byte(owner))
	var out []uint32
	for at := 0; at+4 <= len(sum); at += 4 {
		out = append(out, First+binary.BigEndian.Uint32(sum[at:])%(1<<31-First))
	}
	return out
}

// Free finds a project that no file is in, and that no administrator has given out.
func Free(fd int, from []uint32) (uint32, error) {
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
