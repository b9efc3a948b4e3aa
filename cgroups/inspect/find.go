package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/cgroups"
)

// Found says whose a process or group is.
type Found struct {
	Path      string `json:"path"`
	Kind      Kind   `json:"kind"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
	ID        string `json:"id,omitempty"`
	Pid       int    `json:"pid,omitempty"`
	Comm      string `json:"comm,omitempty"`
}

// find takes whatever people have of a container: the number of a process, the inode of its group in any hierarchy (as
// tools print it, "inode:123", or as a number that is no process; the id that BPF tools print is v2's), a path, within
// the hierarchy or with its mount in front, an id or its beginning, with the runtime before it or not, a uid, or a
// name.
func (f forest) find(what string) (Found, error) {
	if pid, err := strconv.Atoi(what); err == nil && pid > 0 {
		for _, n := range f.all() {
			if slices.Contains(n.files.Pids, pid) {
				return n.foundPid(pid), nil
			}
		}
	}
	if ino, ok := inodeOf(what); ok {
		for _, n := range f.all() {
			if n.files.Inode == ino || slices.Contains(n.files.Inodes, ino) {
				return n.found(), nil
			}
		}
	}
	if strings.Contains(what, "/") && !strings.Contains(what, "://") {
		if n := f.at(what); n != nil {
			return n.found(), nil
		}
	}
	switch got, err := f.withID(what); {
	case err != nil:
		return Found{}, err
	case got != nil:
		return got.found(), nil
	}
	if n, err := f.lookup(what); err == nil || !errors.Is(err, ErrNotFound) {
		if err != nil {
			return Found{}, err
		}
		return n.found(), nil
	}
	return Found{}, fmt.Errorf("%s is no process, inode, path, id, uid or name of a pod's group: %w", visible(what), ErrNotFound)
}

// inodeOf reads "inode:123" and "123".
func inodeOf(what string) (uint64, bool) {
	ino, err := strconv.ParseUint(strings.TrimPrefix(what, "inode:"), 10, 64)
	return ino, err == nil && ino > 0
}

// minPrefix is how much of an id must be there to be one: names are as short.
const minPrefix = 6

// withID is the container whose id this is, or begins so: that of a sandbox too.
func (f forest) withID(what string) (*Node, error) {
	if _, id, ok := strings.Cut(what, "://"); ok {
		what = id
	}
	if len(what) < minPrefix {
		return nil, nil
	}
	var found []*Node
	for _, n := range f.all() {
		if n.Kind != kindContainer || !strings.HasPrefix(n.ID, what) {
			continue
		}
		if n.ID == what {
			return n, nil
		}
		found = append(found, n)
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	var all []string
	for _, n := range found {
		all = append(all, visible(n.topName()+" ("+n.ID+")"))
	}
	return nil, fmt.Errorf("id %s: several match: %s", visible(what), strings.Join(all, ", "))
}

// at is the innermost known group at or above a path.
func (f forest) at(p string) *Node {
	var best *Node
	for _, n := range f.all() {
		if p == n.Path || strings.HasPrefix(p, n.Path+"/") || strings.HasSuffix(p, n.Path) || strings.Contains(p, n.Path+"/") {
			if best == nil || len(n.Path) > len(best.Path) {
				best = n
			}
		}
	}
	return best
}

func (n *Node) foundPid(pid int) Found {
	f := n.found()
	f.Pid, f.Comm = pid, n.snap.Processes[pid].Comm
	return f
}

func (n *Node) found() Found {
	f := Found{Path: n.Path, Kind: n.Kind, UID: n.UID, ID: n.ID}
	if n.UID != "" {
		f.Pod = n.UID
		if id, ok := n.snap.Names[n.UID]; ok && id.Name != "" {
			f.Pod = id.Namespace + "/" + id.Name
		}
	}
	if n.Kind == kindContainer {
		f.Container = n.Title
	}
	return f
}

// findLive reads no more of the machine than the names of the groups, and where a process is.
func (a *app) findLive(ctx context.Context, what string) (Found, error) {
	once()
	n := need{nameOnly: true, files: map[string]bool{}, of: func(s *Snapshot) (bool, error) {
		s.Groups = nil // nothing is read of any
		return false, nil
	}}
	pid, group := 0, liveGroup(what, a.live.CgroupMount)
	if group != "" {
		pid, _ = strconv.Atoi(what)
	}
	if _, ok := inodeOf(what); ok && pid == 0 {
		n.of, n.everywhere = nil, true
	}
	s, err := a.live.capture(ctx, n)
	if err != nil {
		return Found{}, err
	}
	if err := mustHaveGroups(s); err != nil {
		return Found{}, err
	}
	if pid == 0 {
		return s.nodes().find(what)
	}
	if at := s.nodes().at(group); at != nil && below(group, at.Path) {
		if p, ok := readProcess(pid); ok {
			s.Processes[pid] = p
		}
		return at.foundPid(pid), nil
	}
	if ino, ok := inodeOf(what); ok { // a number may be of both
		n.of, n.everywhere = nil, true
		if s, err := a.live.capture(ctx, n); err == nil {
			for _, g := range s.nodes().all() {
				if slices.Contains(g.files.Inodes, ino) {
					return g.found(), nil
				}
			}
		}
	}
	return Found{}, fmt.Errorf("process %d is in group %s, which is no pod's: %w", pid, visible(group), ErrNotFound)
}

// liveGroup is the group of a process, "" of none.
func liveGroup(what, mount string) string {
	pid, err := strconv.Atoi(what)
	if err != nil || pid <= 0 {
		return ""
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil {
		return ""
	}
	h, err := cgroups.Open(mount)
	if err != nil {
		return ""
	}
	p, err := h.FromPid(pid)
	if err != nil {
		return ""
	}
	return path.Clean(p)
}

func (a *app) findCommand() *cobra.Command {
	return &cobra.Command{
		Use: "find PID|PATH|INODE|ID|UID|NAME", Short: "Which pod and container is this?", Args: cobra.ExactArgs(1),
		Long: "Takes the number of a process, the path or the inode of a group in any hierarchy (inode:N, or the id that BPF tools print), the id\n" +
			"of a container or its beginning (berth://ID too), a pod's uid, and a name.",
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := a.find(cmd, args[0])
			if err != nil {
				return err
			}
			return a.print(cmd, struct {
				schema
				Found
			}{thisSchema, f}, func(w io.Writer) error {
				rows := [][]string{{"POD", "CONTAINER", "UID", "GROUP"}, {dash(f.Pod), dash(f.Container), dash(f.UID), f.Path}}
				return printTable(w, rows)
			})
		},
	}
}

func (a *app) find(cmd *cobra.Command, what string) (Found, error) {
	if a.from == "" && a.capture == "" {
		if err := a.checkOutput(); err != nil {
			return Found{}, err
		}
		if err := a.locate(cmd); err != nil {
			return Found{}, err
		}
		return a.findLive(cmd.Context(), what)
	}
	s, err := a.snapshot(cmd)
	if err != nil {
		return Found{}, err
	}
	return s.nodes().find(what)
}
