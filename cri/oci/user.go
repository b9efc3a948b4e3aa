package oci

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// passwdEntry is a line of /etc/passwd.
type passwdEntry struct {
	name     string
	uid, gid uint32
}

// groupEntry is a line of /etc/group.
type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

// ResolveUser says who the container's process is: what the pod asks for, else what the image says, else root. passwd and
// group are the image's files, nil where it has none. A number needs no entry there, a name does.
func ResolveUser(sc *runtimeapi.LinuxContainerSecurityContext, imageUser string, passwd, group []byte) (specs.User, error) {
	who, grp, err := wanted(sc, imageUser)
	if err != nil {
		return specs.User{}, err
	}
	entry, err := findUser(who, passwd)
	if err != nil {
		return specs.User{}, err
	}
	groups := parseGroup(group)
	u := specs.User{UID: entry.uid, GID: entry.gid}
	if grp != "" {
		if u.GID, err = findGroup(grp, groups); err != nil {
			return specs.User{}, err
		}
	}
	// The primary group is one of the supplemental ones too. Else a process could drop it and lose, by that, a denial that
	// a file's mode puts on the group.
	extra := []uint32{u.GID}
	if sc.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge && entry.name != "" {
		for _, g := range groups {
			if slices.Contains(g.members, entry.name) {
				extra = append(extra, g.gid)
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

func findUser(who string, passwd []byte) (passwdEntry, error) {
	if who == "" {
		who = "0"
	}
	users := parsePasswd(passwd)
	if i := slices.IndexFunc(users, func(e passwdEntry) bool { return e.name == who }); i >= 0 {
		return users[i], nil
	}
	n, err := strconv.ParseInt(who, 10, 64)
	if err != nil {
		return passwdEntry{}, fmt.Errorf("user %q: no users found in the image's /etc/passwd", who)
	}
	uid, err := asID(n)
	if err != nil {
		return passwdEntry{}, fmt.Errorf("user: %w", err)
	}
	if i := slices.IndexFunc(users, func(e passwdEntry) bool { return e.uid == uid }); i >= 0 {
		return users[i], nil
	}
	return passwdEntry{uid: uid}, nil
}

func findGroup(name string, groups []groupEntry) (uint32, error) {
	if i := slices.IndexFunc(groups, func(g groupEntry) bool { return g.name == name }); i >= 0 {
		return groups[i].gid, nil
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("group %q: no such group in the image's /etc/group", name)
	}
	gid, err := asID(n)
	if err != nil {
		return 0, fmt.Errorf("group: %w", err)
	}
	return gid, nil
}

var errID = errors.New("is not an id from 0 to 4294967294")

// asID refuses what the kernel would take for "no change", or cut to 32 bits.
func asID(n int64) (uint32, error) {
	if n < 0 || n > 1<<32-2 {
		return 0, fmt.Errorf("%d %w", n, errID)
	}
	return uint32(n), nil
}

// parsePasswd skips lines it cannot read, as libc does.
func parsePasswd(b []byte) []passwdEntry {
	var out []passwdEntry
	for f := range colonFields(b, 4) {
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if f[0] == "" || err1 != nil || err2 != nil {
			continue
		}
		out = append(out, passwdEntry{name: f[0], uid: uint32(uid), gid: uint32(gid)})
	}
	return out
}

func parseGroup(b []byte) []groupEntry {
	var out []groupEntry
	for f := range colonFields(b, 3) {
		gid, err := strconv.ParseUint(f[2], 10, 32)
		if f[0] == "" || err != nil {
			continue
		}
		g := groupEntry{name: f[0], gid: uint32(gid)}
		if len(f) > 3 && f[3] != "" {
			g.members = strings.Split(f[3], ",")
		}
		out = append(out, g)
	}
	return out
}

// colonFields ranges over the lines with at least n fields.
func colonFields(b []byte, n int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		sc := bufio.NewScanner(bytes.NewReader(b))
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			line := strings.TrimSpace(sc.Text())
			if line == "" || line[0] == '#' {
				continue
			}
			if f := strings.Split(line, ":"); len(f) >= n && !yield(f) {
				return
			}
		}
	}
}
