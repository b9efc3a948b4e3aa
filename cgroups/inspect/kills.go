package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berth-node/berth/cgroups/oom"
)

// kernelLog is where kills are read, unless somebody says otherwise.
func (l Live) kernelLog() string { return cmp.Or(l.KernelLog, oom.LogPath) }

// limitName names the group whose limit took a process of a container.
func (s *Snapshot) limitName(victim string, k *oom.Kill, at func(string) *Node) string {
	if k.LimitGroup == victim {
		return "the container itself"
	}
	n := at(k.LimitGroup)
	switch {
	case n == nil:
		return "group " + k.LimitGroup
	case n.Kind == kindRoot:
		return "the group of all pods"
	case n.Kind == kindClass:
		return "the class " + n.Title
	case n.Kind == kindPod:
		return "the pod " + n.Title
	case n.Kind == kindContainer:
		return "the container " + n.Title
	}
	return "group " + n.Path
}

// below says whether a group is another one or in it.
func below(group, in string) bool {
	return group == in || strings.HasPrefix(group, strings.TrimSuffix(in, "/")+"/")
}

// kills reads what the kernel's log has of the pods' groups.
func (l Live) kills(ctx context.Context, s *Snapshot) {
	log, err := oom.OpenLog(l.kernelLog(), false)
	if err != nil {
		s.KillsNote = "the kernel's log cannot be read: " + err.Error()
		return
	}
	defer log.Close()
	kills, err := log.Kills(ctx)
	if err != nil {
		s.KillsNote = err.Error()
	} else if log.Lost() {
		s.KillsNote = "the kernel's log was overwritten while it was read"
	}
	for _, k := range kills {
		if slices.ContainsFunc(tops(s.Machine.Root), func(top string) bool { return below(k.Group, top) }) {
			s.Kills = append(s.Kills, k)
		}
	}
}

// keptKills are the last of each container that the agent has kept: the log is overwritten in time.
func (l Live) keptKills(s *Snapshot) {
	if l.KillsFile == "" {
		return
	}
	kept, err := oom.Load(l.KillsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.KillsNote = cmp.Or(s.KillsNote, err.Error())
	}
	for _, k := range oom.Kills(kept) {
		same := func(o oom.Kill) bool {
			// The clock may have been set.
			return o.Pid == k.Pid && o.Group == k.Group && o.Time.Sub(k.Time).Abs() < 2*time.Second
		}
		if !slices.ContainsFunc(s.Kills, same) {
			s.Kills = append(s.Kills, k)
		}
	}
	slices.SortStableFunc(s.Kills, func(a, b oom.Kill) int { return a.Time.Compare(b.Time) })
}

// maxKilled is how many kills of a pod are told.
const maxKilled = 20

// killed are the last kills in a pod's groups, those that are gone too.
func (s *Snapshot) killed(uid string) []Killed {
	var out []Killed
	var at func(string) *Node
	for _, k := range s.Kills {
		of, id, err := s.owner(k.Group)
		if err != nil || of != uid {
			continue
		}
		if at == nil {
			all := map[string]*Node{}
			for _, n := range s.nodes().all() {
				all[n.Path] = n
			}
			at = func(p string) *Node { return all[p] }
		}
		one := Killed{Kill: k, Container: cmp.Or(s.Names[uid].Containers[id], shorten(id))}
		victim := k.Group
		for id != "" && path.Dir(victim) != "/" && containerID(path.Base(victim)) != id {
			victim = path.Dir(victim)
		}
		who := "the pod"
		if one.Container != "" {
			who = "container " + one.Container
		}
		one.Text = fmt.Sprintf("%s, %s: %s.", who, k.Time.UTC().Format(time.RFC3339), k.Describe(s.limitName(victim, &k, at)))
		out = append(out, one)
	}
	return out[max(0, len(out)-maxKilled):]
}

var errNoUID = errors.New("no pod's group")

// owner is whose a group was, also one that is gone: by the names of the groups it was in.
func (s *Snapshot) owner(group string) (uid, id string, err error) {
	var n *Node
	for _, top := range tops(s.Machine.Root) {
		if !below(group, top) {
			continue
		}
		n = &Node{Path: top, snap: s}
		n.classify(nil)
		for part := range strings.SplitSeq(strings.Trim(strings.TrimPrefix(group, top), "/"), "/") {
			child := &Node{Path: n.Path + "/" + part, snap: s}
			child.classify(n)
			if n = child; n.Kind == kindContainer {
				return n.UID, n.ID, nil
			}
		}
	}
	if n == nil || n.UID == "" {
		return "", "", errNoUID
	}
	return n.UID, "", nil
}
