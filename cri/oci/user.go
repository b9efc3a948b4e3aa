package oci

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/rootfs"
)

// ResolveUser says who the container's process is: what the pod asks for, else what the image says, else root. passwd
// and group are the image's files, nil where it has none. A number needs no entry there, a name does, and digits are a
// number even where an entry has them for its name.
func ResolveUser(sc *runtimeapi.LinuxContainerSecurityContext, imageUser string, passwd, group []byte) (specs.User, error) {
	who, grp, err := wanted(sc, imageUser)
	if err != nil {
		return specs.User{}, err
	}
	entry, err := findUser(who, passwd)
	if err != nil {
		return specs.User{}, err
	}
	groups := slices.Collect(rootfs.Groups(bytes.NewReader(group)))
	u := specs.User{UID: entry.UID, GID: entry.GID}
	if grp != "" {
		if u.GID, err = findGroup(grp, groups); err != nil {
			return specs.User{}, err
		}
	}
	// The primary group is one of the supplemental ones too. Else a process could drop it and lose, by that, a denial
	// that a file's mode puts on the group.
	extra := []uint32{u.GID}
	if sc.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge && entry.Name != "" {
		for _, g := range groups {
			if slices.Contains(g.Members, entry.Name) {
				extra = append(extra, g.GID)
			}
		}
	}
	for _, g := range sc.GetSupplementalGroups() {
		id, err := asID(g)
		if err != nil {
			return specs.User{}, fmt.Errorf("supplemental group: %w", err)
		}
		extra = append(extra, id)
	}
	seen := make(map[uint32]bool, len(extra))
	for _, g := range extra {
		if !seen[g] {
			seen[g] = true
			u.AdditionalGids = append(u.AdditionalGids, g)
		}
	}
	return u, nil
}

// wanted is the user and group as words: names or numbers, "" where nothing is said.
func wanted(sc *runtimeapi.LinuxContainerSecurityContext, imageUser string) (user, group string, err error) {
	switch {
	case sc.GetRunAsUsername() != "":
		user, group, _ = strings.Cut(sc.GetRunAsUsername(), ":") // as an image says it
	case sc.GetRunAsUser() != nil:
		user = strconv.FormatInt(sc.GetRunAsUser().GetValue(), 10)
	}
	if g := sc.GetRunAsGroup(); g != nil {
		if user == "" {
			return "", "", fmt.Errorf("user: group %d is specified without a user", g.GetValue())
		}
		group = strconv.FormatInt(g.GetValue(), 10)
	}
	if user == "" {
		user, group, _ = strings.Cut(imageUser, ":")
	}
	return user, group, nil
}

func findUser(who string, passwd []byte) (rootfs.User, error) {
	if who == "" {
		who = "0"
	}
	uid, isNumber, err := numeric(who)
	if err != nil {
		return rootfs.User{}, fmt.Errorf("user: %w", err)
	}
	for u := range rootfs.Users(bytes.NewReader(passwd)) {
		if isNumber && u.UID == uid || !isNumber && u.Name == who {
			return u, nil
		}
	}
	if !isNumber {
		return rootfs.User{}, fmt.Errorf("user %q: no users found in the image's /etc/passwd", who)
	}
	return rootfs.User{UID: uid}, nil
}

func findGroup(name string, groups []rootfs.Group) (uint32, error) {
	gid, isNumber, err := numeric(name)
	if err != nil {
		return 0, fmt.Errorf("group: %w", err)
	}
	if isNumber {
		return gid, nil
	}
	if i := slices.IndexFunc(groups, func(g rootfs.Group) bool { return g.Name == name }); i >= 0 {
		return groups[i].GID, nil
	}
	return 0, fmt.Errorf("group %q: no such group in the image's /etc/group", name)
}

// numeric reads a user or a group that is said by number. What looks like a number is one, whatever names the image's
// files have: else an image with a user called "1000" that has the id 0 would be root where the pod says 1000, and
// where it was verified not to be root. 0x3e8 is a name, as it is to all who read images.
func numeric(who string) (id uint32, is bool, err error) {
	digits := strings.TrimLeft(who[:min(len(who), 1)], "+-") + who[min(len(who), 1):]
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false, nil
	}
	n, err := strconv.ParseInt(who, 10, 64)
	if err != nil {
		return 0, true, fmt.Errorf("%s %w", who, errID)
	}
	id, err = asID(n)
	return id, true, err
}

// ImageUser is who an image wants to be: a number, or else a name; both are empty when it does not say. A number that
// is none a process can have is returned all the same, and refused where the process is made.
func ImageUser(user string) (uid *int64, name string) {
	user, _, _ = strings.Cut(user, ":")
	if n, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &n, ""
	}
	return nil, user
}

var errID = errors.New("is not an id from 0 to 4294967294")

// asID refuses what the kernel would take for "no change", or cut to 32 bits.
func asID(n int64) (uint32, error) {
	if n < 0 || n > rootfs.MaxID {
		return 0, fmt.Errorf("%d %w", n, errID)
	}
	return uint32(n), nil
}
